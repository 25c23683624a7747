/*
 * What a block entry costs where the GPU is never idle: one graph of NODES kernels in a chain,
 * replayed and timed.
 *
 *     callback_chain chain|ladder NODES REPLAYS ROUNDS BLOCKS THREADS ITERATIONS
 *         NODE_NS BETWEEN_MIB MEMSETS
 *
 * `chain` times the kernel as it is, so under the injector it times that. `ladder` times, in turn
 * and within one process, the kernel as it is and once with each callback of ladder_patch.cu; the
 * driver must have loaded the ladder's subscriber. ITERATIONS 0: find how many make a node last
 * NODE_NS. BETWEEN_MIB, if not 0: before each node another kernel reads so much memory and runs
 * more code than the caches of instructions hold, so that the node finds them cold, as in a server.
 * MEMSETS, if not 0: before each node a memset node, as a decode graph has some of. A round is
 * REPLAYS replays of each; prints one JSON line.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kvtrace_abi.h"
#include "ladder.h"

extern "C" const unsigned char kvtrace_chain_kernel[];

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const int result_ = static_cast<int>(call);                                                \
        if (result_ != 0) {                                                                        \
            give_up(#call " failed: " + std::to_string(result_));                                  \
        }                                                                                          \
    } while (0)

namespace {

constexpr uint32_t kRingLog2 = 20;
/* Of 16 bytes each: more code than any cache of instructions of a multiprocessor holds. */
constexpr uint32_t kEvictingInstructions = 12288;

/* What is timed: a callback of the ladder, and where the ring of its events is. */
struct Variant {
    const char *name;
    const char *callback;
    bool ring_on_device;
    /* Bytes of an event; 0: it leaves none. */
    uint32_t event_bytes;
    /* Its data has no mark, as while recording is switched off. */
    bool is_off = false;
};

constexpr Variant kLadder[] = {
    {"clean", nullptr, false, 0},
    {"no-op", "no_op", false, 0},
    {"leader", "leader", false, 0},
    {"timer", "timer", false, 0},
    {"stores", "stores", false, 64},
    {"launch-base", "launch_base", false, 64},
    {"atomic", "atomic", false, 64},
    {"cache-after", "cache_after", false, 64},
    {"cache-first", "cache_first", false, 64},
    {"injector", "injector", false, 64},
    {"off", "injector", false, 0, true},
    {"before", "before", false, 64},
    {"fenced", "fenced", false, 64},
    {"device-ring", "cache_first", true, 64},
    {"device-ring-no-atomic", "launch_base", true, 64},
    {"no-mark", "no_mark", false, 64},
    {"early-atomic", "early_atomic", false, 64},
    {"half-event", "half_event", false, 32},
    {"weak", "weak", false, 64},
    {"streaming", "streaming", false, 64},
    {"write-through", "write_through", false, 64},
};

struct Options {
    bool is_ladder;
    uint32_t nodes;
    uint32_t replays;
    uint32_t rounds;
    uint32_t blocks;
    uint32_t threads;
    uint32_t iterations;
    uint32_t node_ns;
    uint32_t between_mib;
    uint32_t memsets;
};

struct Ring {
    char *events;
    char *on_device;
    kvtrace_ring_control *control;
    uint32_t *hints;
};

struct Timed {
    Variant variant;
    cudaGraphExec_t exec;
    kvtrace_device_counters *counters;
    std::vector<double> node_ns;
    std::vector<double> submit_ns;
    uint64_t written = 0;
};

[[noreturn]] void give_up(const std::string &why) {
    std::printf("{\"error\": \"%s\"}\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

template <typename Function> Function driver(const char *name) {
    void *found = nullptr;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, nullptr));
    return reinterpret_cast<Function>(found);
}

using Next = decltype(&kvtrace_ladder_next);
using LadderFailure = decltype(&kvtrace_ladder_failure);

struct Ladder {
    Next next = nullptr;
    LadderFailure failure = nullptr;
};

/* The driver has loaded the subscriber by now. */
Ladder find_ladder() {
    const char *path = std::getenv("CUDA_INJECTION64_PATH");
    void *library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    Ladder ladder;
    if (library != nullptr) {
        ladder.next = reinterpret_cast<Next>(dlsym(library, "kvtrace_ladder_next"));
        ladder.failure = reinterpret_cast<LadderFailure>(dlsym(library, "kvtrace_ladder_failure"));
    }
    if (ladder.next == nullptr || ladder.failure == nullptr) {
        give_up("the driver did not load the ladder's subscriber from CUDA_INJECTION64_PATH");
    }
    return ladder;
}

Ring make_ring() {
    Ring ring;
    const size_t bytes = size_t{64} << kRingLog2;
    CHECK(cudaHostAlloc(&ring.events, bytes, cudaHostAllocMapped));
    CHECK(cudaMalloc(&ring.on_device, bytes));
    CHECK(cudaHostAlloc(&ring.control, sizeof(*ring.control), cudaHostAllocMapped));
    CHECK(cudaHostAlloc(&ring.hints, sizeof(uint32_t) << kRingLog2, cudaHostAllocMapped));
    *ring.control = {};
    return ring;
}

uint64_t address(const void *pointer) { return reinterpret_cast<uint64_t>(pointer); }

/* In device memory, as the injector's, behind its counters. */
const void *make_data(const Ring &ring, const Variant &variant, kvtrace_device_counters *counters) {
    kvtrace_callback_data data = {};
    data.magic = variant.is_off ? 0 : KVTRACE_CALLBACK_DATA_MAGIC;
    data.ring_address = address(variant.ring_on_device ? ring.on_device : ring.events);
    data.counters_address = address(counters);
    data.control_address = address(ring.control);
    data.drop_hints_address = address(ring.hints);
    data.capacity_log2 = kRingLog2;
    data.launch_stamp = 1;
    void *made = reinterpret_cast<char *>(counters) + KVTRACE_LADDER_COUNTERS_BEFORE_DATA;
    CHECK(cudaMemcpy(made, &data, sizeof(data), cudaMemcpyHostToDevice));
    return made;
}

/* Take the place of what the caches hold: all of `memory` is read, and the first warp of each block
 * runs through the unrolled loop. */
__global__ void evict(const uint4 *memory, size_t count, uint4 *result) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    const size_t step = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
        const uint4 word = memory[i];
        sum.x += word.x ^ word.y;
        sum.y += word.z ^ word.w;
    }
    if (threadIdx.x < 32) {
        float values[4] = {1, 2, 3, static_cast<float>(sum.x)};
#pragma unroll
        for (uint32_t i = 0; i < kEvictingInstructions; ++i) {
            values[i % 4] = fmaf(values[i % 4], 1.0001f, values[(i + 1) % 4]);
        }
        sum.z = __float_as_uint(values[0] + values[1] + values[2] + values[3]);
    }
    /* What cannot be left out, and never happens. */
    if (sum.x == 0x12345678 && sum.y == 0x9abcdef0 && sum.z == 0) {
        *result = sum;
    }
}

struct Evicting {
    const uint4 *memory;
    size_t count;
    uint4 *result;
    int blocks;
};

Evicting make_evicting(uint32_t mib) {
    void *memory = nullptr;
    void *result = nullptr;
    int processors = 0;
    CHECK(cudaMalloc(&memory, size_t{mib} << 20));
    CHECK(cudaMemset(memory, 1, size_t{mib} << 20));
    CHECK(cudaMalloc(&result, sizeof(uint4)));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    return {static_cast<const uint4 *>(memory), (size_t{mib} << 20) / sizeof(uint4),
            static_cast<uint4 *>(result), 2 * processors};
}

/* What the kernels of all chains store to. */
void *make_cache(const Options &options) {
    void *cache = nullptr;
    CHECK(cudaMalloc(&cache, size_t{2} * sizeof(uint4) * options.blocks * options.threads));
    return cache;
}

cudaGraphExec_t make_chain(const Options &options, CUfunction function, uint32_t iterations,
                           uint32_t nodes, bool is_alone, cudaStream_t stream) {
    static const Evicting evicting = make_evicting(options.between_mib);
    static const auto launch = driver<decltype(&cuLaunchKernel)>("cuLaunchKernel");
    static const auto cache = make_cache(options);
    void *arguments[] = {&iterations, const_cast<void **>(&cache)};
    const auto enqueue = [&] {
        if (options.memsets != 0 && !is_alone) {
            CHECK(cudaMemsetAsync(evicting.result, 0, sizeof(uint4), stream));
        }
        if (options.between_mib != 0 && !is_alone) {
            evict<<<evicting.blocks, 512, 0, stream>>>(evicting.memory, evicting.count,
                                                       evicting.result);
            CHECK(cudaGetLastError());
        }
        CHECK(launch(function, options.blocks, 1, 1, options.threads, 1, 1, 0, stream, arguments,
                     nullptr));
    };
    /* Nothing may be loaded while a stream is captured. */
    enqueue();
    CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < nodes; ++i) {
        enqueue();
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    return exec;
}

/* A module, and so a function, of its own. */
CUfunction load_kernel() {
    static const auto load = driver<decltype(&cuModuleLoadData)>("cuModuleLoadData");
    static const auto get = driver<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CHECK(load(&module, kvtrace_chain_kernel));
    CHECK(get(&function, module, KVTRACE_LADDER_TARGET));
    return function;
}

struct Lap {
    double node_ns;
    double submit_ns;
};

Lap time_replays(cudaGraphExec_t exec, uint32_t replays, uint32_t nodes, cudaStream_t stream) {
    static cudaEvent_t begin = nullptr;
    static cudaEvent_t end = nullptr;
    if (begin == nullptr) {
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
    }
    /* So that the begin is not that of an idle GPU. */
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(begin, stream));
    const auto submitting = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < replays; ++i) {
        CHECK(cudaGraphLaunch(exec, stream));
    }
    const std::chrono::duration<double, std::nano> submitted =
        std::chrono::steady_clock::now() - submitting;
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    const double launches = static_cast<double>(replays) * nodes;
    return {static_cast<double>(ms) * 1e6 / launches, submitted.count() / launches};
}

/* Linear in the iterations: two chains that differ in them only say how many make a node last. */
uint32_t calibrate(const Options &options, CUfunction function, cudaStream_t stream) {
    constexpr uint32_t nodes = 200;
    constexpr uint32_t step = 2000;
    double lasts[2];
    for (uint32_t i = 0; i < 2; ++i) {
        cudaGraphExec_t exec = make_chain(options, function, step * (i + 1), nodes, true, stream);
        time_replays(exec, 5, nodes, stream);
        lasts[i] = time_replays(exec, 20, nodes, stream).node_ns;
        CHECK(cudaGraphExecDestroy(exec));
    }
    const double each = (lasts[1] - lasts[0]) / step;
    const double wanted = step + (options.node_ns - lasts[0]) / each;
    return wanted < 1 || !(each > 0) ? 1 : static_cast<uint32_t>(wanted);
}

Timed prepare(const Options &options, const Variant &variant, const Ladder &ladder,
              const Ring &ring, cudaStream_t stream) {
    Timed timed = {};
    timed.variant = variant;
    CHECK(cudaMalloc(&timed.counters,
                     KVTRACE_LADDER_COUNTERS_BEFORE_DATA + sizeof(kvtrace_callback_data)));
    CHECK(cudaMemset(timed.counters, 0, sizeof(*timed.counters)));
    if (variant.callback != nullptr) {
        ladder.next(variant.callback, make_data(ring, variant, timed.counters));
    }
    timed.exec =
        make_chain(options, load_kernel(), options.iterations, options.nodes, false, stream);
    if (options.is_ladder && ladder.failure()[0] != '\0') {
        give_up(ladder.failure());
    }
    return timed;
}

void clear_events(const Ring &ring) {
    const size_t bytes = size_t{64} << kRingLog2;
    std::fill(ring.events, ring.events + bytes, 0);
    CHECK(cudaMemset(ring.on_device, 0, bytes));
}

/* Whether the callback ran at all, and where its events went: the places of one replay that were
 * written to. */
void count_written(Timed *timed, const Ring &ring, cudaStream_t stream) {
    clear_events(ring);
    CHECK(cudaMemset(timed->counters, 0, sizeof(*timed->counters)));
    CHECK(cudaGraphLaunch(timed->exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    const size_t bytes = size_t{64} << kRingLog2;
    std::vector<char> copy(timed->variant.ring_on_device ? bytes : 0);
    if (timed->variant.ring_on_device) {
        CHECK(cudaMemcpy(copy.data(), ring.on_device, bytes, cudaMemcpyDeviceToHost));
    }
    const char *events = timed->variant.ring_on_device ? copy.data() : ring.events;
    const uint32_t size = timed->variant.event_bytes;
    for (size_t place = 0; size != 0 && (place + 1) * size <= bytes; ++place) {
        timed->written += (events[place * size + 14] | events[place * size + 15]) != 0 ? 1u : 0u;
    }
}

void print_numbers(const char *name, const std::vector<double> &numbers) {
    std::printf(", \"%s\": [", name);
    for (size_t i = 0; i < numbers.size(); ++i) {
        std::printf("%s%.2f", i > 0 ? ", " : "", numbers[i]);
    }
    std::printf("]");
}

void print(const Options &options, const std::vector<Timed> &all) {
    cudaDeviceProp device;
    int version = 0;
    CHECK(cudaGetDeviceProperties(&device, 0));
    CHECK(cudaDriverGetVersion(&version));
    std::printf("{\"device\": \"%s\", \"cuda_of_driver\": %d, \"nodes\": %u, \"replays\": %u, "
                "\"blocks\": %u, \"threads\": %u, \"iterations\": %u, \"between_mib\": %u, "
                "\"variants\": [",
                device.name, version, options.nodes, options.replays, options.blocks,
                options.threads, options.iterations, options.between_mib);
    for (size_t i = 0; i < all.size(); ++i) {
        std::printf("%s{\"name\": \"%s\"", i > 0 ? ", " : "", all[i].variant.name);
        print_numbers("node_ns", all[i].node_ns);
        print_numbers("submit_ns", all[i].submit_ns);
        if (all[i].variant.event_bytes != 0) {
            std::printf(", \"written\": %llu", static_cast<unsigned long long>(all[i].written));
        }
        std::printf("}");
    }
    std::printf("]}\n");
    std::fflush(stdout);
}

Options read_options(int argc, char **argv) {
    Options options = {};
    uint32_t *const numbers[] = {&options.nodes,   &options.replays,     &options.rounds,
                                 &options.blocks,  &options.threads,     &options.iterations,
                                 &options.node_ns, &options.between_mib, &options.memsets};
    constexpr int count = sizeof(numbers) / sizeof(numbers[0]);
    const std::string mode = argc == count + 2 ? argv[1] : "";
    options.is_ladder = mode == "ladder";
    for (int i = 0; argc == count + 2 && i < count; ++i) {
        *numbers[i] = static_cast<uint32_t>(std::strtoul(argv[i + 2], nullptr, 10));
    }
    /* One replay more than is timed; else a ring that nobody drains is full. */
    const uint64_t events = uint64_t{options.nodes} * (options.replays + 1) * options.blocks;
    if ((mode != "chain" && !options.is_ladder) || options.threads == 0 || events == 0 ||
        options.rounds == 0 || (options.is_ladder && events > uint64_t{1} << kRingLog2)) {
        std::fprintf(stderr,
                     "usage: callback_chain chain|ladder NODES REPLAYS ROUNDS BLOCKS "
                     "THREADS ITERATIONS NODE_NS BETWEEN_MIB MEMSETS; in a ladder at most %u "
                     "blocks a round\n",
                     1u << kRingLog2);
        std::exit(2);
    }
    return options;
}

} // namespace

int main(int argc, char **argv) {
    Options options = read_options(argc, argv);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const Ladder ladder = options.is_ladder ? find_ladder() : Ladder();
    if (options.iterations == 0) {
        options.iterations = calibrate(options, load_kernel(), stream);
    }
    const Ring ring = options.is_ladder ? make_ring() : Ring();
    std::vector<Timed> all;
    for (const Variant &variant : kLadder) {
        if (options.is_ladder || variant.callback == nullptr) {
            all.push_back(prepare(options, variant, ladder, ring, stream));
        }
    }
    /* Each round begins with another, so that no place in it is one variant's. */
    for (uint32_t round = 0; round <= options.rounds; ++round) {
        for (size_t i = 0; i < all.size(); ++i) {
            Timed &timed = all[(i + round * 5) % all.size()];
            CHECK(cudaMemset(timed.counters, 0, sizeof(*timed.counters)));
            CHECK(cudaDeviceSynchronize());
            const Lap lap = time_replays(timed.exec, options.replays, options.nodes, stream);
            /* The first round warms up. */
            if (round > 0) {
                timed.node_ns.push_back(lap.node_ns);
                timed.submit_ns.push_back(lap.submit_ns);
            }
        }
    }
    for (Timed &timed : all) {
        if (timed.variant.event_bytes != 0) {
            count_written(&timed, ring, stream);
        }
    }
    print(options, all);
    return 0;
}
