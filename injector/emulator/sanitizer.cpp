/* The Sanitizer entry points that the injector uses, and the one driver query. */
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace kvtrace_emu;

struct Sanitizer_Subscriber_st {
    Sanitizer_CallbackFunc callback;
    void *userdata;
};

namespace kvtrace_emu {
namespace {

constexpr uint32_t kDomains = 32;
constexpr uint32_t kIds = 64;
constexpr size_t kAlignment = 256;

std::atomic<Sanitizer_Subscriber_st *> subscriber{nullptr};
std::atomic<bool> is_enabled[kDomains][kIds];

/* How many launch callbacks this thread is in. */
thread_local uint32_t launch_depth = 0;

struct Failure {
    uint32_t n;
    int result;
};

struct Calls {
    std::mutex mutex;
    std::map<std::string, uint64_t> counts;
    std::map<std::string, Failure> planned;
};

void read_planned_failure(Calls *calls) {
    const char *text = std::getenv("KVTRACE_EMULATOR_FAIL");
    const char *colon = text != nullptr ? std::strchr(text, ':') : nullptr;
    if (colon == nullptr) {
        return;
    }
    char *end = nullptr;
    const auto n = static_cast<uint32_t>(std::strtoul(colon + 1, &end, 10));
    if (*end == ':') {
        calls->planned[std::string(text, colon)] = {
            n, static_cast<int>(std::strtol(end + 1, nullptr, 10))};
    }
}

/* Never destroyed: late threads may still call while the process exits. */
Calls &calls() {
    static Calls &made = *[] {
        auto *fresh = new Calls;
        read_planned_failure(fresh);
        return fresh;
    }();
    return made;
}

/* Count the call, and let it fail if a test or KVTRACE_EMULATOR_FAIL=name:n:result asks for it. */
SanitizerResult enter(const char *name) {
    Calls &all = calls();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const uint64_t count = ++all.counts[name];
    const auto found = all.planned.find(name);
    const bool fails =
        found != all.planned.end() && (found->second.n == 0 || found->second.n == count);
    return fails ? static_cast<SanitizerResult>(found->second.result) : SANITIZER_SUCCESS;
}

/* The same for a call that patches. On a GPU each one hangs in a launch's callback
 * (docs/answers.md, 2); here it ends the process with a word, unless a run is to show what patching
 * so late loses. */
SanitizerResult enter_patching(const char *name) {
    if (launch_depth > 0 && std::getenv("KVTRACE_EMULATOR_LATE_PATCHING") == nullptr) {
        std::fprintf(stderr, "emulator: %s in a launch's callback: on a GPU it hangs\n", name);
        std::abort();
    }
    return enter(name);
}

SanitizerResult allocate(const char *name, CUcontext handle, void **memory, size_t size) {
    if (const SanitizerResult result = enter(name)) {
        return result;
    }
    auto *context = reinterpret_cast<kvtrace_emu_context *>(handle);
    auto owned = std::make_unique<char[]>(size + kAlignment);
    const auto address = reinterpret_cast<uintptr_t>(owned.get());
    *memory = owned.get() + (kAlignment - address % kAlignment);
    const std::lock_guard<std::mutex> lock(context->mutex);
    context->allocations.push_back(std::move(owned));
    return SANITIZER_SUCCESS;
}

template <typename Handle> kvtrace_emu_module *module_of(Handle handle) {
    return reinterpret_cast<kvtrace_emu_module *>(handle);
}

/* The callbacks that this library has too, each compiled for the host. */
struct Patch {
    Sanitizer_InstructionId instruction;
    const char *name;
    uint32_t bit;
};

constexpr Patch kPatches[] = {
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_block_enter", kPatchBlockEnter},
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_block_enter_no_op", kPatchNoOp},
    {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "kvtrace_store", kPatchGlobalAccess},
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_lifetime_no_op", kPatchNoOp},
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_lifetime_pointer_read", kPatchPointerRead},
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_lifetime_counter", kPatchCounter},
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "kvtrace_lifetime_full_event", kPatchBlockEnter},
};

/* The patch of a callback that fits the instruction; 0 if none does. */
uint32_t patch_for(Sanitizer_InstructionId instruction, const char *name) {
    for (const Patch &patch : kPatches) {
        if (patch.instruction == instruction && std::strcmp(patch.name, name) == 0) {
            return patch.bit;
        }
    }
    return 0;
}

} // namespace

void call_back(Sanitizer_CallbackDomain domain, uint32_t id, const void *data) {
    if (is_enabled[domain][id].load(std::memory_order_relaxed)) {
        call_back_unasked(domain, id, data);
    }
}

void call_back_unasked(Sanitizer_CallbackDomain domain, uint32_t id, const void *data) {
    const Sanitizer_Subscriber_st *to = subscriber.load(std::memory_order_acquire);
    if (to == nullptr) {
        return;
    }
    const bool is_launch =
        domain == SANITIZER_CB_DOMAIN_LAUNCH || domain == SANITIZER_CB_DOMAIN_GRAPHS;
    launch_depth += is_launch ? 1 : 0;
    to->callback(to->userdata, domain, id, data);
    launch_depth -= is_launch ? 1 : 0;
}

} // namespace kvtrace_emu

extern "C" {

SanitizerResult sanitizerSubscribe(Sanitizer_SubscriberHandle *handle,
                                   Sanitizer_CallbackFunc callback, void *userdata) {
    if (const SanitizerResult result = enter("sanitizerSubscribe")) {
        return result;
    }
    auto *made = new Sanitizer_Subscriber_st{callback, userdata};
    Sanitizer_Subscriber_st *none = nullptr;
    if (!subscriber.compare_exchange_strong(none, made)) {
        delete made;
        return SANITIZER_ERROR_MAX_LIMIT_REACHED;
    }
    *handle = made;
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerEnableCallback(uint32_t enable, Sanitizer_SubscriberHandle,
                                        Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id) {
    if (const SanitizerResult result = enter("sanitizerEnableCallback")) {
        return result;
    }
    if (static_cast<uint32_t>(domain) >= kDomains || id >= kIds) {
        return SANITIZER_ERROR_INVALID_PARAMETER;
    }
    is_enabled[domain][id].store(enable != 0);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerAlloc(CUcontext context, void **memory, size_t size) {
    return allocate("sanitizerAlloc", context, memory, size);
}

SanitizerResult sanitizerAllocHost(CUcontext context, void **memory, size_t size) {
    return allocate("sanitizerAllocHost", context, memory, size);
}

SanitizerResult sanitizerMemset(void *memory, int value, size_t count, Sanitizer_StreamHandle) {
    if (const SanitizerResult result = enter("sanitizerMemset")) {
        return result;
    }
    std::memset(memory, value, count);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerMemcpyHostToDeviceAsync(void *to, void *from, size_t count,
                                                 Sanitizer_StreamHandle) {
    if (const SanitizerResult result = enter("sanitizerMemcpyHostToDeviceAsync")) {
        return result;
    }
    std::memcpy(to, from, count);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerGetStreamHandle(CUcontext context, CUstream stream,
                                         Sanitizer_StreamHandle *handle) {
    if (const SanitizerResult result = enter("sanitizerGetStreamHandle")) {
        return result;
    }
    auto *owner = reinterpret_cast<kvtrace_emu_context *>(context);
    *handle = stream != nullptr ? reinterpret_cast<Sanitizer_StreamHandle>(stream)
                                : as<Sanitizer_StreamHandle>(owner->default_stream.get());
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerStreamSynchronize(Sanitizer_StreamHandle stream) {
    if (const SanitizerResult result = enter("sanitizerStreamSynchronize")) {
        return result;
    }
    reinterpret_cast<kvtrace_emu_stream *>(stream)->wait_idle();
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerAddPatches(const void *image, CUcontext context) {
    if (const SanitizerResult result = enter_patching("sanitizerAddPatches")) {
        return result;
    }
    reinterpret_cast<kvtrace_emu_context *>(context)->patches_loaded = image != nullptr;
    return image != nullptr ? SANITIZER_SUCCESS : SANITIZER_ERROR_INVALID_PARAMETER;
}

SanitizerResult sanitizerPatchInstructions(const Sanitizer_InstructionId instruction,
                                           CUmodule module, const char *name) {
    if (const SanitizerResult result = enter_patching("sanitizerPatchInstructions")) {
        return result;
    }
    const uint32_t patch = patch_for(instruction, name);
    if (!module_of(module)->context->patches_loaded || patch == 0) {
        return SANITIZER_ERROR_INVALID_PARAMETER;
    }
    module_of(module)->marked_patches |= patch;
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerPatchModule(CUmodule module) {
    if (const SanitizerResult result = enter_patching("sanitizerPatchModule")) {
        return result;
    }
    module_of(module)->patches.store(module_of(module)->marked_patches, std::memory_order_release);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerUnpatchModule(CUmodule module) {
    if (const SanitizerResult result = enter_patching("sanitizerUnpatchModule")) {
        return result;
    }
    module_of(module)->patches.store(0, std::memory_order_release);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerSetCallbackData(CUfunction handle, const void *data) {
    if (const SanitizerResult result = enter("sanitizerSetCallbackData")) {
        return result;
    }
    auto *function = reinterpret_cast<kvtrace_emu_function *>(handle);
    function->data.store(data, std::memory_order_release);
    function->is_bound.store(true, std::memory_order_release);
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerSetLaunchCallbackData(Sanitizer_LaunchHandle launch, CUfunction,
                                               Sanitizer_StreamHandle, const void *data) {
    if (const SanitizerResult result = enter("sanitizerSetLaunchCallbackData")) {
        return result;
    }
    auto *node = reinterpret_cast<ExecNode *>(launch);
    node->launch_data = data;
    node->has_launch_data = true;
    return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerGetFunctionPcAndSize(CUmodule module, const char *name, uint64_t *pc,
                                              uint64_t *size) {
    if (const SanitizerResult result = enter("sanitizerGetFunctionPcAndSize")) {
        return result;
    }
    for (const auto &function : module_of(module)->functions) {
        if (function->name == name) {
            *pc = function->pc;
            *size = 4096;
            return SANITIZER_SUCCESS;
        }
    }
    return SANITIZER_ERROR_INVALID_PARAMETER;
}

CUresult cuFuncGetName(const char **name, CUfunction function) {
    if (enter("cuFuncGetName") != SANITIZER_SUCCESS) {
        return CUDA_ERROR_UNKNOWN;
    }
    *name = reinterpret_cast<kvtrace_emu_function *>(function)->name.c_str();
    return CUDA_SUCCESS;
}

void kvtrace_emu_fail(const char *function_name, uint32_t n, int result) {
    const std::lock_guard<std::mutex> lock(calls().mutex);
    calls().planned[function_name] = {n, result};
}

uint64_t kvtrace_emu_calls(const char *function_name) {
    const std::lock_guard<std::mutex> lock(calls().mutex);
    const auto found = calls().counts.find(function_name);
    return found != calls().counts.end() ? found->second : 0;
}

} // extern "C"
