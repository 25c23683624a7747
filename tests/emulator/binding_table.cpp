/*
 * The binding table of docs/measurements.md on the emulator, without the injector: this program is
 * the Sanitizer's subscriber itself, and binds as a row of the table says.
 *
 *     binding_table BINDING GRAPH     prints one JSON line: fault, events, events with own data
 */
#include <sanitizer.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kvtrace_abi.h"

extern "C" {
#include "kvtrace_emulator_decl.h"
}

namespace {

constexpr uint32_t kNodes = 40;
constexpr uint32_t kReplays = 7;
constexpr uint32_t kRingLog2 = 12;
constexpr uint32_t kMostData = 1024;

struct Ring {
    kvtrace_block_event events[1 << kRingLog2];
    kvtrace_device_counters counters;
    kvtrace_ring_control control;
    uint32_t hints[1 << kRingLog2];
    kvtrace_callback_data data[kMostData];
};

/* What is bound: which functions, and whether each launch and node gets data of its own. */
struct Binding {
    bool target;
    bool others;
    bool each_launch;
};

const std::map<std::string, Binding> kBindings = {
    {"target_function", {true, false, false}},
    {"each_launch_alone", {false, false, true}},
    {"every_function", {true, true, false}},
    {"each_launch_and_every_function", {true, true, true}},
};

Ring *ring = nullptr;
Binding binding;
/* The data given to a launch of the target, by its number from 1; number 0 is the function's. */
uint32_t last_number = 0;
/* Of each replay's node the number that it was given, in the order of launching. */
std::vector<uint32_t> given;

template <typename Pointer> uint64_t address(Pointer *pointer) {
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
}

void make_ring(CUcontext context) {
    void *memory = nullptr;
    sanitizerAllocHost(context, &memory, sizeof(Ring));
    std::memset(memory, 0, sizeof(Ring));
    ring = static_cast<Ring *>(memory);
    for (uint32_t number = 0; number < kMostData; ++number) {
        kvtrace_callback_data *data = &ring->data[number];
        data->magic = KVTRACE_CALLBACK_DATA_MAGIC;
        data->ring_address = address(ring->events);
        data->counters_address = address(&ring->counters);
        data->control_address = address(&ring->control);
        data->drop_hints_address = address(ring->hints);
        data->capacity_log2 = kRingLog2;
        data->launch_stamp = number;
    }
}

bool is_target(CUfunction function) {
    const char *name = nullptr;
    cuFuncGetName(&name, function);
    return std::strcmp(name, "target") == 0;
}

void bind_launch(const Sanitizer_LaunchData &launch) {
    if (!is_target(launch.function)) {
        return;
    }
    given.push_back(++last_number % kMostData);
    sanitizerSetLaunchCallbackData(launch.hLaunch, launch.function, launch.hStream,
                                   &ring->data[given.back()]);
}

void SANITIZERAPI on_callback(void *, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                              const void *cbdata) {
    if (domain == SANITIZER_CB_DOMAIN_GRAPHS) {
        const auto *node = static_cast<const Sanitizer_GraphNodeLaunchData *>(cbdata);
        if (binding.each_launch && node->nodeType == CU_GRAPH_NODE_TYPE_KERNEL) {
            bind_launch(node->launchData);
        }
        return;
    }
    if (id == SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED) {
        make_ring(static_cast<const Sanitizer_ResourceContextData *>(cbdata)->context);
    } else if (id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        const auto *module = static_cast<const Sanitizer_ResourceModuleData *>(cbdata);
        if (std::string(module->pCubin, module->cubinSize).find("target") != std::string::npos) {
            sanitizerAddPatches("callback", module->context);
            sanitizerPatchInstructions(SANITIZER_INSTRUCTION_BLOCK_ENTER, module->module,
                                       "kvtrace_block_enter");
            sanitizerPatchModule(module->module);
        }
    } else {
        const auto *loaded = static_cast<const Sanitizer_ResourceFunctionsLazyLoadedData *>(cbdata);
        for (uint32_t i = 0; i < loaded->numFunctions; ++i) {
            const bool target = is_target(loaded->functions[i]);
            if (target ? binding.target : binding.others) {
                sanitizerSetCallbackData(loaded->functions[i], target ? &ring->data[0] : nullptr);
            }
        }
    }
}

void subscribe() {
    Sanitizer_SubscriberHandle handle = nullptr;
    sanitizerSubscribe(&handle, on_callback, nullptr);
    for (const uint32_t id :
         {SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED, SANITIZER_CBID_RESOURCE_MODULE_LOADED,
          SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED}) {
        sanitizerEnableCallback(1, handle, SANITIZER_CB_DOMAIN_RESOURCE, id);
    }
    sanitizerEnableCallback(1, handle, SANITIZER_CB_DOMAIN_GRAPHS,
                            SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN);
}

/* Events that carry exactly the number that was given to their node. */
uint32_t events_with_own_data(uint64_t events) {
    uint32_t right = 0;
    for (uint64_t i = 0; i < events && i < given.size(); ++i) {
        right += ring->events[i].launch_stamp == given[i] ? 1u : 0u;
    }
    return right;
}

} // namespace

int main(int argc, char **argv) {
    const auto found = kBindings.find(argc == 3 ? argv[1] : "");
    if (found == kBindings.end()) {
        return 2;
    }
    binding = found->second;
    const std::string between = argv[2];
    subscribe();
    kvtrace_emu_context *context = kvtrace_emu_context_create(0);
    const char *names[] = {"target", "neighbour"};
    const char *other_name[] = {"other"};
    kvtrace_emu_module *module = kvtrace_emu_module_load(context, names, 2, 0);
    kvtrace_emu_module *other_module = kvtrace_emu_module_load(context, other_name, 1, 0);
    kvtrace_emu_function *target = kvtrace_emu_get_function(module, "target");
    kvtrace_emu_function *neighbour = between == "other_module"
                                          ? kvtrace_emu_get_function(other_module, "other")
                                          : kvtrace_emu_get_function(module, "neighbour");
    kvtrace_emu_stream *stream = kvtrace_emu_stream_create(context);
    kvtrace_emu_begin_capture(stream);
    for (uint32_t i = 0; i < kNodes; ++i) {
        kvtrace_emu_launch(stream, target, {1, 1, 1}, {64, 1, 1}, 0);
        if (between == "memset_nodes") {
            kvtrace_emu_memset(stream);
        }
        kvtrace_emu_launch(stream, neighbour, {1, 1, 1}, {64, 1, 1}, 0);
    }
    kvtrace_emu_exec *exec = kvtrace_emu_instantiate(context, kvtrace_emu_end_capture(stream));
    int error = 0;
    for (uint32_t i = 0; i < kReplays && error == 0; ++i) {
        kvtrace_emu_graph_launch(exec, stream);
        error = kvtrace_emu_stream_synchronize(stream);
    }
    const uint64_t events = ring->counters.reserved_count;
    std::printf("{\"error\": %d, \"events\": %llu, \"own_data\": %u}\n", error,
                static_cast<unsigned long long>(events), events_with_own_data(events));
    return 0;
}
