#include "modules.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "config.h"
#include "contexts.h"
#include "device_fatbin.h"
#include "failure.h"
#include "kernel_names.h"

namespace kvtrace {
namespace {

constexpr auto kLongestPatchWait = std::chrono::seconds(10);
constexpr const char *kBlockEnterName = "kvtrace_block_enter";
constexpr const char *kNoOpName = "kvtrace_block_enter_no_op";
constexpr const char *kStoreName = "kvtrace_store";

/* Loading our own device code may call us back: such a module is none of ours to look at. */
thread_local bool is_patching = false;

bool patch_instructions(Injector *self, CUmodule module, Sanitizer_InstructionId instruction,
                        const char *callback) {
    return check(self->api.patch_instructions(instruction, module, callback),
                 KVTRACE_SITE_PATCH_INSTRUCTIONS, callback);
}

/* Accesses to memory are patched only if their stores are wanted: each would cost a call. */
bool patch_stores(Injector *self, CUmodule module) {
    return store_mode(self->config) == KVTRACE_STORES_NONE ||
           patch_instructions(self, module, SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, kStoreName);
}

bool apply_patches(Injector *self, Context *context, CUmodule module) {
    if (!context->patches_added) {
        context->patches_added =
            check(self->api.add_patches(kvtrace_device_fatbin, context->handle),
                  KVTRACE_SITE_ADD_PATCHES, "device callback");
    }
    const char *block_enter =
        self->has_flag(KVTRACE_CONFIG_NO_OP_PATCH) ? kNoOpName : kBlockEnterName;
    return context->patches_added &&
           patch_instructions(self, module, SANITIZER_INSTRUCTION_BLOCK_ENTER, block_enter) &&
           patch_stores(self, module) &&
           check(self->api.patch_module(module), KVTRACE_SITE_PATCH_MODULE, block_enter);
}

/* Do a patching call while no other thread does one; false if it failed or could not be done. */
template <typename Call> bool patch_alone(Injector *self, Call call) {
    const std::unique_lock<std::timed_mutex> lock(self->patch_mutex, kLongestPatchWait);
    if (!lock.owns_lock()) {
        record_failure(KVTRACE_SITE_PATCH_MODULE, ETIMEDOUT, "another thread is still patching");
        return false;
    }
    is_patching = true;
    const bool done = call();
    is_patching = false;
    return done;
}

/* A function that stays unbound would fault under graph replay. So a module in which binding fails
 * loses its patches: better not recorded than broken. Not from a launch's callback, where every
 * call of patching hangs. Returns false if it could not be done. */
bool give_module_up(Injector *self, CUmodule module) {
    {
        const std::lock_guard<std::mutex> lock(self->module_mutex);
        self->patched_modules.erase(module);
    }
    const bool is_unpatched = patch_alone(self, [&] {
        return check(self->api.unpatch_module(module), KVTRACE_SITE_PATCH_MODULE, "unpatch");
    });
    JournalLine line("module_unpatched");
    self->journal.write(line.add_hex("module", module).add("unpatched", is_unpatched));
    return is_unpatched;
}

Context *context_of_patched(Injector *self, CUmodule module) {
    const std::lock_guard<std::mutex> lock(self->module_mutex);
    const auto found = self->patched_modules.find(module);
    return found != self->patched_modules.end() ? found->second : nullptr;
}

uint32_t take_kernel_slot(Injector *self) {
    const uint32_t slot = self->kernel_slot_count.fetch_add(1);
    if (slot < kMaxKernelSlots) {
        return slot;
    }
    record_failure(KVTRACE_SITE_TABLE_FULL, kMaxKernelSlots, "target kernels");
    return kNotTarget;
}

void journal_module(Injector *self, CUmodule module, uint64_t image_bytes, bool is_patched) {
    JournalLine line("module_patched");
    line.add_hex("module", module);
    if (image_bytes != 0) {
        line.add("image_bytes", image_bytes);
    }
    self->journal.write(line.add("patched", is_patched));
}

void journal_function(Injector *self, const Context &context, CUmodule module, const char *name,
                      uint32_t kernel_slot, bool is_bound) {
    JournalLine line("function_bound");
    line.add("context_index", static_cast<uint64_t>(context.index)).add_hex("module", module);
    line.add("target", kernel_slot != kNotTarget).add("bound", is_bound);
    if (kernel_slot != kNotTarget) {
        uint64_t pc = 0;
        uint64_t size = 0;
        line.add("kernel_slot", static_cast<uint64_t>(kernel_slot));
        if (check(self->api.get_function_pc_and_size(module, name, &pc, &size),
                  KVTRACE_SITE_FUNCTION_PC, name)) {
            line.add("pc", pc).add("size", size);
        }
    }
    self->journal.write(line.add("name", name));
}

/* The kernel slot of a function: the one it has, or a new one if its name is a target's. */
uint32_t kernel_slot_of(Injector *self, CUfunction function, const char *name) {
    FunctionInfo known = {kNotTarget, false};
    if (self->functions.find(function, &known) && known.kernel_slot != kNotTarget) {
        return known.kernel_slot;
    }
    return is_target_name(self->config, name) ? take_kernel_slot(self) : kNotTarget;
}

/* Bind one function of a patched module; the targets to their record, the others to NULL. A
 * function that was never bound reads garbage as its data when a graph replays it. What is found is
 * for the table of functions. */
FunctionInfo bind_function(Injector *self, Context *context, CUmodule module, CUfunction function,
                           const char *name) {
    FunctionInfo info = {kernel_slot_of(self, function, name), true};
    const bool is_target = info.kernel_slot != kNotTarget;
    bool is_bound = false;
    if (is_target || self->config.bind_mode == KVTRACE_BIND_EVERY_FUNCTION) {
        const void *data = is_target ? context->for_kernel_slot(info.kernel_slot) : nullptr;
        is_bound =
            check(self->api.set_callback_data(function, data), KVTRACE_SITE_BIND_FUNCTION, name);
        info.is_patched = is_bound;
        info.is_unbound = !is_bound;
    }
    journal_function(self, *context, module, name, info.kernel_slot, is_bound);
    if (is_target) {
        context->has_target.store(true, std::memory_order_relaxed);
        self->process_flags.fetch_or(KVTRACE_FILE_PATCHED, std::memory_order_relaxed);
    }
    return info;
}

void bind_functions(Injector *self, Context *context, CUmodule module, const CUfunction *functions,
                    size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const char *name = nullptr;
        const CUresult result = self->api.function_name(&name, functions[i]);
        if (result != CUDA_SUCCESS || name == nullptr) {
            record_failure(KVTRACE_SITE_FUNCTION_NAME, static_cast<uint32_t>(result),
                           "cuFuncGetName");
            continue;
        }
        FunctionInfo info = bind_function(self, context, module, functions[i], name);
        const bool is_lost = info.is_unbound && give_module_up(self, module);
        info.is_unbound = info.is_unbound && !is_lost;
        self->functions.insert(functions[i], module, info);
        if (is_lost) {
            return;
        }
    }
}

bool patch(Injector *self, Context *context, CUmodule module) {
    return patch_alone(self, [&] { return apply_patches(self, context, module); });
}

/* Note functions of a module that waits to be patched; false if it does not wait. */
bool add_waiting(Injector *self, CUmodule module, const CUfunction *functions, size_t count) {
    const std::lock_guard<std::mutex> lock(self->module_mutex);
    const auto found = self->waiting_modules.find(module);
    if (found == self->waiting_modules.end()) {
        return false;
    }
    std::vector<CUfunction> &known = found->second.functions;
    for (size_t i = 0; i < count; ++i) {
        if (std::find(known.begin(), known.end(), functions[i]) == known.end()) {
            known.push_back(functions[i]);
        }
    }
    return true;
}

/* Take a module out of those that wait; its functions are bound as they are loaded from here on. */
WaitingModule end_waiting(Injector *self, CUmodule module) {
    const std::lock_guard<std::mutex> lock(self->module_mutex);
    const auto found = self->waiting_modules.find(module);
    if (found == self->waiting_modules.end()) {
        return {};
    }
    WaitingModule waiting = std::move(found->second);
    self->waiting_modules.erase(found);
    self->patched_modules[module] = waiting.context;
    return waiting;
}

} // namespace

void module_loaded(Injector *self, const Sanitizer_ResourceModuleData &data) {
    if (is_patching || data.pCubin == nullptr || self->has_flag(KVTRACE_CONFIG_NO_PATCH) ||
        !image_names_target(self->config, data.pCubin, data.cubinSize)) {
        return;
    }
    Context *context = prepare_context(self, data.context);
    if (context != nullptr && self->has_flag(KVTRACE_CONFIG_PATCH_AT_FIRST_LAUNCH_END)) {
        const std::lock_guard<std::mutex> lock(self->module_mutex);
        self->waiting_modules[data.module].context = context;
        return;
    }
    const bool is_patched = context != nullptr && patch(self, context, data.module);
    if (is_patched) {
        const std::lock_guard<std::mutex> lock(self->module_mutex);
        self->patched_modules[data.module] = context;
    }
    journal_module(self, data.module, static_cast<uint64_t>(data.cubinSize), is_patched);
}

void patch_after_launch(Injector *self, const Sanitizer_LaunchData &launch) {
    FunctionInfo info = {kNotTarget, false};
    if (!self->functions.find(launch.function, &info) || info.kernel_slot == kNotTarget ||
        info.is_patched) {
        return;
    }
    const WaitingModule waiting = end_waiting(self, launch.module);
    if (waiting.context == nullptr) {
        return;
    }
    const bool is_patched = patch(self, waiting.context, launch.module);
    journal_module(self, launch.module, 0, is_patched);
    if (is_patched) {
        bind_functions(self, waiting.context, launch.module, waiting.functions.data(),
                       waiting.functions.size());
    } else {
        const std::lock_guard<std::mutex> lock(self->module_mutex);
        self->patched_modules.erase(launch.module);
    }
}

void module_unloading(Injector *self, const Sanitizer_ResourceModuleData &data) {
    if (is_patching || self->context_count.load(std::memory_order_relaxed) == 0) {
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(self->module_mutex);
        self->patched_modules.erase(data.module);
        self->waiting_modules.erase(data.module);
    }
    self->functions.forget_module(data.module);
}

void functions_loaded(Injector *self, const Sanitizer_ResourceFunctionsLazyLoadedData &data) {
    if (is_patching || add_waiting(self, data.module, data.functions, data.numFunctions)) {
        return;
    }
    if (Context *context = context_of_patched(self, data.module)) {
        bind_functions(self, context, data.module, data.functions, data.numFunctions);
    }
}

FunctionInfo meet_function(Injector *self, const Sanitizer_LaunchData &launch) {
    const char *name = launch.functionName != nullptr ? launch.functionName : "";
    if (Context *context = context_of_patched(self, launch.module)) {
        /* Loaded without FUNCTIONS_LAZY_LOADED: this launch is the first that can bind it. */
        const FunctionInfo found =
            bind_function(self, context, launch.module, launch.function, name);
        self->functions.insert(launch.function, launch.module, found);
        return found;
    }
    FunctionInfo info = {kNotTarget, false};
    const bool is_waiting = add_waiting(self, launch.module, &launch.function, 1);
    if (is_target_name(self->config, name)) {
        /* Its blocks are expected, and have no events: by design, or because we could not patch. */
        info.kernel_slot = take_kernel_slot(self);
        JournalLine line("target_not_patched");
        line.add("kernel_slot", static_cast<uint64_t>(info.kernel_slot));
        line.add("by_design", is_waiting || self->has_flag(KVTRACE_CONFIG_NO_PATCH));
        self->journal.write(line.add("name", name));
    }
    self->functions.insert(launch.function, launch.module, info);
    return info;
}

} // namespace kvtrace
