/*
 * Small CUDA programs for the corner cases of graph replay, one a run:
 *
 *     graph_cases CASE            prints one JSON line with what really ran
 *
 * Targets are probe_target, probe_target_b, probe_target_graph_only and probe_target_stores;
 * probe_neighbour and probe_neighbour_stores live in the same module and must never show up;
 * other_kernel lives in another module. Each kernel counts its blocks on the device, so the printed
 * counts are the truth. Replays are queued without waiting, as vLLM does.
 */
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

void *other_kernel_address();

__global__ void probe_target(unsigned long long *counters) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[0], 1ULL);
    }
}

__global__ void probe_target_b(unsigned long long *counters) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[0], 1ULL);
    }
}

__global__ void probe_target_graph_only(unsigned long long *counters) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[0], 1ULL);
    }
}

/* As vLLM's cache kernel: block x writes row x where its slot says, all threads K and then V. */
__global__ void probe_target_stores(unsigned long long *counters, uint4 *cache,
                                    const long long *kv_slots) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[0], 1ULL);
    }
    const long long kv_slot = kv_slots[blockIdx.x];
    if (kv_slot < 0) {
        return;
    }
    uint4 *key = cache + kv_slot * 2 * blockDim.x;
    key[threadIdx.x] = make_uint4(threadIdx.x, blockIdx.x, 1, 2);
    key[blockDim.x + threadIdx.x] = make_uint4(threadIdx.x, blockIdx.x, 3, 4);
}

/* Stores 64 times as much, none of which may be recorded. */
__global__ void probe_neighbour_stores(unsigned long long *counters, uint4 *elsewhere) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[1], 1ULL);
    }
    for (unsigned i = 0; i < 128; ++i) {
        elsewhere[(blockIdx.x * 128 + i) * blockDim.x + threadIdx.x] = make_uint4(i, i, i, i);
    }
}

__global__ void probe_neighbour(unsigned long long *counters) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[1], 1ULL);
    }
}

__global__ void probe_set_condition(cudaGraphConditionalHandle handle,
                                    unsigned long long *counters) {
    const unsigned long long turn = atomicAdd(&counters[3], 1ULL);
    cudaGraphSetConditional(handle, turn % 2);
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t result_ = (call);                                                        \
        if (result_ != cudaSuccess) {                                                              \
            std::printf("{\"error\": \"%s\", \"line\": %d}\n", cudaGetErrorString(result_),        \
                        __LINE__);                                                                 \
            std::fflush(stdout);                                                                   \
            std::_Exit(9);                                                                         \
        }                                                                                          \
    } while (0)

namespace {

unsigned long long *counters;
void *scratch;
constexpr int kNodes = 40;
constexpr int kReplays = 7;
/* What a case adds to the printed truth: ", \"name\": value" and so on. */
std::string more_truth;

void launch_target(cudaStream_t stream, int blocks = 1) {
    probe_target<<<blocks, 64, 0, stream>>>(counters);
}

void launch_neighbour(cudaStream_t stream) { probe_neighbour<<<1, 64, 0, stream>>>(counters); }

void launch_other(cudaStream_t stream) {
    void *arguments[] = {&counters};
    CHECK(cudaLaunchKernel(other_kernel_address(), dim3(1), dim3(64), arguments, 0, stream));
}

cudaStream_t new_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

cudaGraph_t capture(cudaStream_t stream, const std::function<void()> &body) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    body();
    CHECK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

void replay(cudaGraphExec_t exec, cudaStream_t stream, int times = kReplays) {
    for (int i = 0; i < times; ++i) {
        CHECK(cudaGraphLaunch(exec, stream));
    }
}

enum class Between { kNothing, kNeighbour, kOther, kMemset };

void body_of(cudaStream_t stream, Between between, bool target_last) {
    for (int i = 0; i < kNodes; ++i) {
        if (target_last && between == Between::kNeighbour) {
            launch_neighbour(stream);
        }
        launch_target(stream);
        if (!target_last && between == Between::kNeighbour) {
            launch_neighbour(stream);
        }
        if (between == Between::kOther) {
            launch_other(stream);
        }
        if (between == Between::kMemset) {
            CHECK(cudaMemsetAsync(scratch, i, 64, stream));
            launch_neighbour(stream);
        }
    }
}

void simple_graph(Between between, bool target_last) {
    cudaStream_t stream = new_stream();
    replay(instantiate(capture(stream, [&] { body_of(stream, between, target_last); })), stream);
}

void plain() {
    cudaStream_t stream = new_stream();
    for (int i = 0; i < 50; ++i) {
        probe_target<<<dim3(1 + i % 5, 1 + i % 3, 1 + i % 2), 64, 0, stream>>>(counters);
        launch_neighbour(stream);
    }
}

void plain_and_graph() {
    cudaStream_t stream = new_stream();
    launch_target(stream, 8);
    cudaGraphExec_t exec =
        instantiate(capture(stream, [&] { body_of(stream, Between::kNeighbour, true); }));
    for (int i = 0; i < kReplays; ++i) {
        launch_target(stream, 3);
        replay(exec, stream, 1);
    }
}

void two_targets() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, [&] {
        for (int i = 0; i < kNodes; ++i) {
            launch_target(stream);
            probe_target_b<<<2, 64, 0, stream>>>(counters);
            launch_neighbour(stream);
        }
    });
    replay(instantiate(graph), stream);
}

void graph_only() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, [&] {
        for (int i = 0; i < 6; ++i) {
            probe_target_graph_only<<<1, 64, 0, stream>>>(counters);
        }
    });
    replay(instantiate(graph), stream, 3);
}

void streams(int count) {
    std::vector<cudaStream_t> side;
    for (int i = 0; i < count; ++i) {
        side.push_back(new_stream());
    }
    cudaEvent_t fork;
    CHECK(cudaEventCreate(&fork));
    cudaGraph_t graph = capture(side[0], [&] {
        CHECK(cudaEventRecord(fork, side[0]));
        for (int s = 1; s < count; ++s) {
            CHECK(cudaStreamWaitEvent(side[s], fork));
        }
        for (int i = 0; i < 25; ++i) {
            for (int s = 0; s < count; ++s) {
                launch_target(side[s], 1 + s % 2);
                launch_neighbour(side[s]);
            }
        }
        for (int s = 1; s < count; ++s) {
            cudaEvent_t join;
            CHECK(cudaEventCreate(&join));
            CHECK(cudaEventRecord(join, side[s]));
            CHECK(cudaStreamWaitEvent(side[0], join));
        }
    });
    replay(instantiate(graph), side[0]);
}

void two_threads() {
    const auto work = [] {
        cudaStream_t stream = new_stream();
        cudaGraphExec_t exec =
            instantiate(capture(stream, [&] { body_of(stream, Between::kNeighbour, false); }));
        replay(exec, stream, 100);
        CHECK(cudaStreamSynchronize(stream));
    };
    std::thread one(work);
    std::thread two(work);
    one.join();
    two.join();
}

void two_execs() {
    cudaStream_t one = new_stream();
    cudaStream_t two = new_stream();
    cudaGraph_t graph = capture(one, [&] { body_of(one, Between::kNeighbour, true); });
    cudaGraphExec_t first = instantiate(graph);
    cudaGraphExec_t second = instantiate(graph);
    for (int i = 0; i < kReplays; ++i) {
        replay(first, one, 1);
        replay(second, two, 1);
    }
}

void child_graphs() {
    cudaStream_t stream = new_stream();
    cudaGraph_t child = capture(stream, [&] {
        for (int i = 0; i < 5; ++i) {
            launch_target(stream);
            launch_neighbour(stream);
        }
    });
    cudaGraph_t parent;
    CHECK(cudaGraphCreate(&parent, 0));
    cudaGraphNode_t first;
    cudaGraphNode_t second;
    CHECK(cudaGraphAddChildGraphNode(&first, parent, nullptr, 0, child));
    CHECK(cudaGraphAddChildGraphNode(&second, parent, &first, 1, child));
    replay(instantiate(parent), stream);
}

void upload() {
    cudaStream_t stream = new_stream();
    cudaGraphExec_t exec =
        instantiate(capture(stream, [&] { body_of(stream, Between::kNeighbour, true); }));
    CHECK(cudaGraphUpload(exec, stream));
    replay(exec, stream, 2);
    CHECK(cudaGraphUpload(exec, stream));
    replay(exec, stream, 1);
}

void conditional() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault));
    cudaGraphNode_t setter;
    cudaKernelNodeParams kernel = {};
    void *setter_arguments[] = {&handle, &counters};
    kernel.func = reinterpret_cast<void *>(probe_set_condition);
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3(1);
    kernel.kernelParams = setter_arguments;
    CHECK(cudaGraphAddKernelNode(&setter, graph, nullptr, 0, &kernel));
    cudaGraphNodeParams branch = {};
    branch.type = cudaGraphNodeTypeConditional;
    branch.conditional.handle = handle;
    branch.conditional.type = cudaGraphCondTypeIf;
    branch.conditional.size = 1;
    cudaGraphNode_t branch_node;
    CHECK(cudaGraphAddNode(&branch_node, graph, &setter, nullptr, 1, &branch));
    cudaGraph_t branch_body = branch.conditional.phGraph_out[0];
    void *target_arguments[] = {&counters};
    cudaKernelNodeParams target = {};
    target.func = reinterpret_cast<void *>(probe_target);
    target.gridDim = dim3(1);
    target.blockDim = dim3(64);
    target.kernelParams = target_arguments;
    cudaGraphNode_t previous = nullptr;
    for (int i = 0; i < 5; ++i) {
        cudaGraphNode_t node;
        CHECK(cudaGraphAddKernelNode(&node, branch_body, previous ? &previous : nullptr,
                                     previous ? 1 : 0, &target));
        previous = node;
    }
    replay(instantiate(graph), stream, 4);
}

void disabled() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, [&] { body_of(stream, Between::kNothing, true); });
    cudaGraphExec_t exec = instantiate(graph);
    std::vector<cudaGraphNode_t> nodes(kNodes);
    size_t count = nodes.size();
    CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
    CHECK(cudaGraphNodeSetEnabled(exec, nodes[kNodes / 2], 0));
    CHECK(cudaGraphNodeSetEnabled(exec, nodes[kNodes - 1], 0));
    replay(exec, stream);
}

void changed_parameters() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, [&] {
        launch_target(stream, 2);
        launch_neighbour(stream);
    });
    cudaGraphExec_t exec = instantiate(graph);
    replay(exec, stream, 3);
    std::vector<cudaGraphNode_t> nodes(2);
    size_t count = nodes.size();
    CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
    void *arguments[] = {&counters};
    cudaKernelNodeParams target = {};
    target.func = reinterpret_cast<void *>(probe_target);
    target.gridDim = dim3(7);
    target.blockDim = dim3(64);
    target.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(exec, nodes[0], &target));
    replay(exec, stream, 3);
}

void recreated() {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = capture(stream, [&] { body_of(stream, Between::kNeighbour, true); });
    for (int i = 0; i < 6; ++i) {
        cudaGraphExec_t exec = instantiate(graph);
        replay(exec, stream, 2);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaGraphExecDestroy(exec));
    }
}

void programmatic() {
    cudaStream_t stream = new_stream();
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(64);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaGraph_t graph = capture(stream, [&] {
        for (int i = 0; i < kNodes; ++i) {
            CHECK(cudaLaunchKernelEx(&config, probe_target, counters));
        }
    });
    replay(instantiate(graph), stream);
}

void many_replays() {
    cudaStream_t stream = new_stream();
    cudaGraphExec_t exec = instantiate(capture(stream, [&] {
        for (int i = 0; i < 2; ++i) {
            launch_target(stream);
            launch_neighbour(stream);
        }
    }));
    replay(exec, stream, 70000);
}

void many_blocks() {
    cudaStream_t stream = new_stream();
    for (int i = 0; i < 16; ++i) {
        launch_target(stream, 100000);
    }
}

void slow_blocks() {
    cudaStream_t stream = new_stream();
    for (int i = 0; i < 400; ++i) {
        launch_target(stream, 4000);
        CHECK(cudaStreamSynchronize(stream));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

/* A cache of kCacheSlots slots and the slots of the rows; remembers what each launch saw. */
class StoreCase {
  public:
    static constexpr int kRows = 5;

    StoreCase() {
        CHECK(cudaMalloc(&cache_, kCacheSlots * kSlotBytes));
        CHECK(cudaMalloc(&elsewhere_, kRows * 128 * kThreads * sizeof(uint4)));
        CHECK(cudaMalloc(&kv_slots_, kRows * sizeof(long long)));
    }

    /* Queued like any copy, so that what is launched from here on sees it. */
    void set_turn(long long turn) {
        latest_ = {turn % kCacheSlots, 100 + turn % 100, -1, 300 - turn % 100, 400};
        CHECK(cudaMemcpyAsync(kv_slots_, latest_.data(), kRows * sizeof(long long),
                              cudaMemcpyHostToDevice, stream));
    }
    void launch() const {
        probe_target_stores<<<kRows, kThreads, 0, stream>>>(counters, cache_, kv_slots_);
    }
    void launch_neighbour() const {
        probe_neighbour_stores<<<kRows, kThreads, 0, stream>>>(counters, elsewhere_);
    }
    void remember(int launches) {
        for (int i = 0; i < launches; ++i) {
            seen_ += seen_.empty() ? "[" : ", [";
            for (int row = 0; row < kRows; ++row) {
                seen_ += (row > 0 ? ", " : "") + std::to_string(latest_[row]);
            }
            seen_ += "]";
        }
    }
    void tell() const {
        const auto number = [](const void *address) {
            return std::to_string(reinterpret_cast<unsigned long long>(address));
        };
        more_truth = ", \"cache_address\": " + number(cache_) +
                     ", \"counter_address\": " + number(counters) +
                     ", \"slot_bytes\": " + std::to_string(kSlotBytes) +
                     ", \"threads\": " + std::to_string(kThreads) + ", \"kv_slots\": [" + seen_ +
                     "]";
    }

    cudaStream_t stream = new_stream();

  private:
    static constexpr int kThreads = 64;
    static constexpr int kCacheSlots = 512;
    static constexpr size_t kSlotBytes = 2 * kThreads * sizeof(uint4);
    uint4 *cache_;
    uint4 *elsewhere_;
    long long *kv_slots_;
    std::vector<long long> latest_;
    std::string seen_;
};

void stores_plain() {
    StoreCase one;
    for (int turn = 0; turn < 20; ++turn) {
        one.set_turn(turn);
        one.launch();
        one.launch_neighbour();
        one.remember(1);
    }
    one.tell();
}

void stores_graph() {
    StoreCase one;
    constexpr int nodes = 10;
    one.set_turn(0);
    one.launch();
    one.remember(1);
    cudaGraphExec_t exec = instantiate(capture(one.stream, [&] {
        for (int i = 0; i < nodes; ++i) {
            one.launch();
            one.launch_neighbour();
        }
    }));
    for (int turn = 1; turn <= kReplays; ++turn) {
        one.set_turn(turn);
        replay(exec, one.stream, 1);
        one.remember(nodes);
    }
    one.tell();
}

/* More stores than a small ring holds. */
void stores_many() {
    StoreCase one;
    one.set_turn(0);
    for (int i = 0; i < 2000; ++i) {
        one.launch();
    }
    one.remember(2000);
    one.tell();
}

/* Ask the injector for a turn, if it was told to follow a file, and give it time to see it. */
bool set_switch(unsigned long long turn) {
    const char *path = std::getenv("KVTRACE_TEST_SWITCH");
    std::FILE *file = path != nullptr ? std::fopen(path, "r+b") : nullptr;
    if (file == nullptr) {
        return false;
    }
    std::fwrite(&turn, sizeof(turn), 1, file);
    std::fclose(file);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return true;
}

/* Five turns of the same launches, of which every second is let pass; nothing waits for them. */
void switched() {
    constexpr int blocks_a_turn = 3 + 2 + 4 * kNodes;
    cudaStream_t stream = new_stream();
    launch_target(stream);
    cudaGraphExec_t bare =
        instantiate(capture(stream, [&] { body_of(stream, Between::kNothing, true); }));
    cudaGraphExec_t mixed =
        instantiate(capture(stream, [&] { body_of(stream, Between::kMemset, true); }));
    int recorded = 1;
    for (unsigned long long turn = 0; turn < 5; ++turn) {
        const bool is_off = set_switch(turn) && turn % 2 != 0;
        recorded += is_off ? 0 : blocks_a_turn;
        launch_target(stream, 3);
        launch_neighbour(stream);
        replay(bare, stream, 2);
        probe_target_b<<<2, 64, 0, stream>>>(counters);
        replay(mixed, stream, 1);
        std::thread([&] { replay(bare, stream, 1); }).join();
    }
    more_truth = ", \"recorded_blocks\": " + std::to_string(recorded);
}

const std::map<std::string, std::function<void()>> kCases = {
    {"plain", plain},
    {"plain_and_graph", plain_and_graph},
    {"alone", [] { simple_graph(Between::kNothing, true); }},
    {"neighbour_last", [] { simple_graph(Between::kNeighbour, false); }},
    {"target_last", [] { simple_graph(Between::kNeighbour, true); }},
    {"other_module", [] { simple_graph(Between::kOther, false); }},
    {"memset_nodes", [] { simple_graph(Between::kMemset, false); }},
    {"two_targets", two_targets},
    {"graph_only", graph_only},
    {"streams_2", [] { streams(2); }},
    {"streams_4", [] { streams(4); }},
    {"streams_8", [] { streams(8); }},
    {"streams_16", [] { streams(16); }},
    {"two_threads", two_threads},
    {"two_execs", two_execs},
    {"child_graphs", child_graphs},
    {"upload", upload},
    {"conditional", conditional},
    {"disabled", disabled},
    {"changed_parameters", changed_parameters},
    {"recreated", recreated},
    {"programmatic", programmatic},
    {"many_replays", many_replays},
    {"many_blocks", many_blocks},
    {"slow_blocks", slow_blocks},
    {"switched", switched},
    {"stores_plain", stores_plain},
    {"stores_graph", stores_graph},
    {"stores_many", stores_many},
};

} // namespace

int main(int argc, char **argv) {
    const auto found = kCases.find(argc == 2 ? argv[1] : "");
    if (found == kCases.end()) {
        for (const auto &[name, run] : kCases) {
            std::fprintf(stderr, "%s\n", name.c_str());
        }
        return 2;
    }
    CHECK(cudaMalloc(&counters, 4 * sizeof(*counters)));
    CHECK(cudaMemset(counters, 0, 4 * sizeof(*counters)));
    CHECK(cudaMalloc(&scratch, 64));
    found->second();
    CHECK(cudaDeviceSynchronize());
    unsigned long long ran[4];
    CHECK(cudaMemcpy(ran, counters, sizeof(ran), cudaMemcpyDeviceToHost));
    std::printf("{\"case\": \"%s\", \"target_blocks\": %llu, \"neighbour_blocks\": %llu%s}\n",
                argv[1], ran[0], ran[1], more_truth.c_str());
    return 0;
}
