#include "subscriber.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "patch_point.h"
#include "region.h"
#include "sanitizer_api.h"

extern "C" const unsigned char kvtrace_lifetime_fatbin[];

namespace {

using kvtrace_lifetime::Point;

enum class Binding { kTarget, kLaunch, kEvery, kAgain, kNever };

struct BindingName {
    const char *name;
    Binding binding;
};

constexpr BindingName kBindings[] = {{"target-only", Binding::kTarget},
                                     {"per-launch", Binding::kLaunch},
                                     {"every-function", Binding::kEvery},
                                     {"re-bound", Binding::kAgain},
                                     {"never", Binding::kNever}};

/* One launch of a function of the patched module, as the host was told of it. */
struct Launch {
    uint64_t grid_id;
    bool is_target;
    bool is_node;
    bool is_bound;
    /* What was bound to it or to its function. */
    const void *data;
};

/* What the callback got, against what was bound. */
struct Received {
    uint64_t as_bound = 0;
    uint64_t null = 0;
    uint64_t of_another = 0;
    uint64_t unknown = 0;
    uint64_t first_unknown = 0;
};

kvtrace::SanitizerApi api;
std::string callback;
Binding binding = Binding::kNever;
Point point = Point::kModuleLoad;
/* The module with the target, and what was loaded of it before it was patched. */
CUmodule target_module = nullptr;
CUcontext target_context = nullptr;
std::vector<CUfunction> functions;
std::atomic<CUmodule> patched{nullptr};
std::atomic<bool> is_patching{false};
/* Of the target, launched before it was patched. */
uint64_t blocks_before = 0;
std::thread patching_thread;
CUfunction target = nullptr;
const void *data_of_target = nullptr;
uint32_t last_number = 0;
std::vector<Launch> launches;
std::string failure;

/* The program has mapped it before the driver loads us. */
volatile uintptr_t region_address = KVTRACE_LIFETIME_ADDRESS;

kvtrace_lifetime_region *region() {
    return reinterpret_cast<kvtrace_lifetime_region *>(region_address);
}

void check(SanitizerResult result, const char *call) {
    if (result != SANITIZER_SUCCESS && failure.empty()) {
        failure = std::string(call) + " failed: " + std::to_string(result);
    }
}

template <typename Pointer> uint64_t address(Pointer *pointer) {
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer));
}

void fill_data() {
    for (uint32_t number = 0; number < KVTRACE_LIFETIME_MOST_DATA; ++number) {
        kvtrace_callback_data *data = &region()->data[number].data;
        data->magic = KVTRACE_CALLBACK_DATA_MAGIC;
        data->ring_address = address(region()->events);
        data->counters_address = address(&region()->counters);
        data->control_address = address(&region()->control);
        data->drop_hints_address = address(region()->drop_hints);
        data->capacity_log2 = KVTRACE_LIFETIME_RING_LOG2;
        data->one_shot = 1;
        data->launch_stamp = number;
    }
}

bool names_target(const char *text, size_t size) {
    return memmem(text, size, KVTRACE_LIFETIME_TARGET, std::strlen(KVTRACE_LIFETIME_TARGET)) !=
           nullptr;
}

void bind(CUfunction function, const void *data) {
    check(api.set_callback_data(function, data), "sanitizerSetCallbackData");
    data_of_target = function == target ? data : data_of_target;
}

void bind_as_asked(CUfunction function) {
    const bool is_target = function == target;
    if (binding == Binding::kEvery || binding == Binding::kAgain ||
        (is_target && binding == Binding::kTarget)) {
        bind(function, is_target ? &region()->data[0] : nullptr);
    }
}

/* Bind it now if its module is patched, else as soon as it is. */
void add_function(CUfunction function) {
    functions.push_back(function);
    if (patched == target_module) {
        bind_as_asked(function);
    }
}

/* Patch the target's module, unless that was begun before. */
void patch() {
    if (is_patching.exchange(true)) {
        return;
    }
    const std::string name = "kvtrace_lifetime_" + callback;
    check(api.add_patches(kvtrace_lifetime_fatbin, target_context), "sanitizerAddPatches");
    check(api.patch_instructions(SANITIZER_INSTRUCTION_BLOCK_ENTER, target_module, name.c_str()),
          "sanitizerPatchInstructions");
    check(api.patch_module(target_module), "sanitizerPatchModule");
    for (const CUfunction function : functions) {
        bind_as_asked(function);
    }
    patched = target_module;
}

void module_loaded(const Sanitizer_ResourceModuleData &module) {
    if (target_module == nullptr && module.pCubin != nullptr &&
        names_target(module.pCubin, module.cubinSize)) {
        target_module = module.module;
        target_context = module.context;
        if (point == Point::kModuleLoad) {
            patch();
        }
    } else if (point == Point::kNextModule && blocks_before != 0) {
        patch();
    }
}

void functions_loaded(const Sanitizer_ResourceFunctionsLazyLoadedData &loaded) {
    if (loaded.module != target_module) {
        return;
    }
    for (uint32_t i = 0; i < loaded.numFunctions; ++i) {
        const char *name = nullptr;
        if (api.function_name(&name, loaded.functions[i]) != CUDA_SUCCESS || name == nullptr) {
            failure = "cuFuncGetName failed";
            continue;
        }
        target = names_target(name, std::strlen(name)) ? loaded.functions[i] : target;
        add_function(loaded.functions[i]);
    }
    if (point == Point::kFunctionLoad) {
        patch();
    }
}

/* Where functions come loaded with their module, nothing is told of them before their launch. */
void meet(const Sanitizer_LaunchData &launch) {
    const char *name = launch.functionName != nullptr ? launch.functionName : "";
    if (target == nullptr && launch.module == target_module &&
        names_target(name, std::strlen(name))) {
        target = launch.function;
        add_function(target);
    }
}

/* A launch of the target that nothing is recorded of: the module is not patched yet. */
void launched_before(const Sanitizer_LaunchData &launch) {
    if (target == nullptr || launch.function != target) {
        return;
    }
    if (point == Point::kLaunchBegin) {
        patch();
    } else {
        blocks_before += uint64_t{launch.gridDim_x} * launch.gridDim_y * launch.gridDim_z;
    }
}

void launch_ended(const Sanitizer_LaunchData &launch) {
    if (launch.function != target || is_patching) {
        return;
    }
    if (point == Point::kLaunchEnd) {
        patch();
    } else if (point == Point::kThread && !patching_thread.joinable()) {
        patching_thread = std::thread(patch);
    }
}

void launched(const Sanitizer_LaunchData &launch, bool is_node) {
    meet(launch);
    if (launch.module != patched) {
        launched_before(launch);
        return;
    }
    const bool is_target = launch.function == target;
    const bool binds_all = binding == Binding::kEvery || binding == Binding::kAgain;
    Launch seen = {launch.gridId, is_target, is_node,
                   binds_all || (is_target && binding == Binding::kTarget),
                   is_target ? data_of_target : nullptr};
    if (is_target && binding == Binding::kLaunch) {
        seen.is_bound = true;
        seen.data = &region()->data[++last_number % KVTRACE_LIFETIME_MOST_DATA];
        check(api.set_launch_callback_data(launch.hLaunch, launch.function, launch.hStream,
                                           seen.data),
              "sanitizerSetLaunchCallbackData");
    }
    launches.push_back(seen);
}

void resource_changed(Sanitizer_CallbackId id, const void *data) {
    if (id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        module_loaded(*static_cast<const Sanitizer_ResourceModuleData *>(data));
    } else if (id == SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED) {
        functions_loaded(*static_cast<const Sanitizer_ResourceFunctionsLazyLoadedData *>(data));
    }
}

/* By id: the Sanitizer also tells of what was not enabled, as soon as anything of a domain is. */
void SANITIZERAPI on_callback(void *, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                              const void *data) {
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH && id == SANITIZER_CBID_LAUNCH_END) {
        launch_ended(*static_cast<const Sanitizer_LaunchData *>(data));
    } else if (domain == SANITIZER_CB_DOMAIN_LAUNCH) {
        launched(*static_cast<const Sanitizer_LaunchData *>(data), false);
    } else if (domain == SANITIZER_CB_DOMAIN_SYNCHRONIZE) {
        if (point == Point::kSynchronize && blocks_before != 0) {
            patch();
        }
    } else if (domain == SANITIZER_CB_DOMAIN_GRAPHS) {
        const auto &node = *static_cast<const Sanitizer_GraphNodeLaunchData *>(data);
        if (node.nodeType == CU_GRAPH_NODE_TYPE_KERNEL && node.isGraphUpload == 0) {
            launched(node.launchData, true);
        }
    } else if (domain == SANITIZER_CB_DOMAIN_RESOURCE) {
        resource_changed(id, data);
    }
}

void subscribe() {
    Sanitizer_SubscriberHandle handle = nullptr;
    check(api.subscribe(&handle, on_callback, nullptr), "sanitizerSubscribe");
    const auto enable = [handle](Sanitizer_CallbackDomain domain, uint32_t id) {
        check(api.enable_callback(1, handle, domain, id), "sanitizerEnableCallback");
    };
    enable(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED);
    enable(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED);
    enable(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN);
    enable(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN);
    if (point == Point::kLaunchEnd || point == Point::kThread) {
        enable(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END);
    }
    if (point == Point::kSynchronize) {
        enable(SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED);
    }
}

bool is_data(uint64_t value) {
    const uint64_t first = address(region()->data);
    return value >= first && value < first + sizeof(region()->data) &&
           (value - first) % sizeof(kvtrace_lifetime_data) == 0;
}

/* The k-th call with a grid id is of its k-th launch: each launch of the matrix has one block. */
std::vector<const Launch *> launches_of(const std::vector<uint64_t> &grid_ids) {
    std::map<uint64_t, std::vector<const Launch *>> by_grid;
    std::map<uint64_t, size_t> taken;
    for (const Launch &launch : launches) {
        by_grid[launch.grid_id].push_back(&launch);
    }
    std::vector<const Launch *> found;
    found.reserve(grid_ids.size());
    for (const uint64_t grid_id : grid_ids) {
        const std::vector<const Launch *> &same = by_grid[grid_id];
        const size_t place = taken[grid_id]++;
        found.push_back(place < same.size() ? same[place] : nullptr);
    }
    return found;
}

uint64_t seen_count() {
    const uint64_t count = region()->seen_count;
    return count < KVTRACE_LIFETIME_MOST_SEEN ? count : KVTRACE_LIFETIME_MOST_SEEN;
}

uint64_t event_count() {
    const uint64_t count = region()->counters.reserved_count;
    return count < KVTRACE_LIFETIME_RING_EVENTS ? count : KVTRACE_LIFETIME_RING_EVENTS;
}

std::vector<uint64_t> grid_ids_seen() {
    std::vector<uint64_t> grid_ids(seen_count());
    for (size_t i = 0; i < grid_ids.size(); ++i) {
        grid_ids[i] = region()->seen[i].grid_id;
    }
    return grid_ids;
}

void add(Received *received, const Launch &launch, uint64_t value) {
    if (launch.is_bound && value == address(launch.data)) {
        ++received->as_bound;
    } else if (value == 0) {
        ++received->null;
    } else if (is_data(value)) {
        ++received->of_another;
    } else if (received->unknown++ == 0) {
        received->first_unknown = value;
    }
}

void print_received() {
    std::map<std::string, Received> by_launch;
    const std::vector<const Launch *> found = launches_of(grid_ids_seen());
    for (size_t i = 0; i < found.size(); ++i) {
        if (found[i] != nullptr) {
            const std::string who = found[i]->is_target ? "target" : "neighbour";
            add(&by_launch[who + (found[i]->is_node ? "_node" : "_plain")], *found[i],
                region()->seen[i].userdata);
        }
    }
    const char *comma = "";
    std::printf(", \"received\": {");
    for (const auto &[launch, received] : by_launch) {
        std::printf("%s\"%s\": {\"as_bound\": %llu, \"null\": %llu, \"of_another\": %llu, "
                    "\"unknown\": %llu, \"first_unknown\": %llu}",
                    comma, launch.c_str(), static_cast<unsigned long long>(received.as_bound),
                    static_cast<unsigned long long>(received.null),
                    static_cast<unsigned long long>(received.of_another),
                    static_cast<unsigned long long>(received.unknown),
                    static_cast<unsigned long long>(received.first_unknown));
        comma = ", ";
    }
    std::printf("}");
}

/* Of the recorded events, those that carry the number of the data bound to their launch. */
uint64_t events_with_own_data() {
    std::vector<uint64_t> grid_ids(event_count());
    for (size_t i = 0; i < grid_ids.size(); ++i) {
        grid_ids[i] = region()->events[i].grid_id;
    }
    uint64_t own = 0;
    const std::vector<const Launch *> found = launches_of(grid_ids);
    for (size_t i = 0; i < found.size(); ++i) {
        const uint32_t number = region()->events[i].launch_stamp % KVTRACE_LIFETIME_MOST_DATA;
        own += found[i] != nullptr && found[i]->data == &region()->data[number] ? 1u : 0u;
    }
    return own;
}

/* Calls of the callback for targets that left a trace; all of them are in one sum or the other. */
uint64_t events_of_target() {
    uint64_t events = event_count();
    for (const kvtrace_lifetime_data &data : region()->data) {
        events += data.count;
    }
    for (const Launch *launch : launches_of(grid_ids_seen())) {
        events += launch != nullptr && launch->is_target && launch->is_node ? 1u : 0u;
    }
    return events;
}

bool find_binding(const std::string &name) {
    for (const BindingName &known : kBindings) {
        if (name == known.name) {
            binding = known.binding;
            return true;
        }
    }
    return false;
}

/* Words of the variable, as they were when the process began to use CUDA. */
std::vector<std::string> cell_words() {
    const char *text = std::getenv(KVTRACE_LIFETIME_CELL);
    std::vector<std::string> words;
    std::string rest = text != nullptr ? text : "";
    for (size_t space = rest.find(' '); words.size() < 3 && space != std::string::npos;
         space = rest.find(' ')) {
        words.push_back(rest.substr(0, space));
        rest = rest.substr(space + 1);
    }
    words.push_back(rest);
    return words;
}

} // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    const std::vector<std::string> words = cell_words();
    char error[256];
    if (words.size() != 4 || !find_binding(words[1]) ||
        !kvtrace_lifetime::find_point(words[2], &point)) {
        failure = "no cell is named by " KVTRACE_LIFETIME_CELL;
    } else if (!api.load(words[3].c_str(), error, sizeof(error))) {
        failure = error;
    } else {
        callback = words[0];
        fill_data();
        subscribe();
    }
    return 1;
}

void kvtrace_lifetime_before_replay(uint32_t replay) {
    if (binding == Binding::kAgain && target != nullptr) {
        bind(target, &region()->data[replay + 1]);
    }
}

void kvtrace_lifetime_report(const char *error, uint32_t replays, uint32_t expected_events) {
    if (patching_thread.joinable()) {
        patching_thread.join();
    }
    if (failure.empty() && (target_module == nullptr || target == nullptr)) {
        failure = "the Sanitizer did not tell of the module, or not of the target";
    }
    for (char &letter : failure) {
        letter = letter == '"' || letter == '\\' || letter < ' ' ? '?' : letter;
    }
    std::printf("{\"error\": \"%s\", \"failure\": \"%s\", \"replays\": %u, \"expected\": %u, "
                "\"events\": %llu, \"own_data\": %llu, \"before\": %llu",
                error, failure.c_str(), replays, expected_events,
                static_cast<unsigned long long>(events_of_target()),
                static_cast<unsigned long long>(events_with_own_data()),
                static_cast<unsigned long long>(blocks_before));
    print_received();
    std::printf("}\n");
    std::fflush(stdout);
}
