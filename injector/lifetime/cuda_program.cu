/* The workload on a GPU. One block a kernel, so that every launch is one call of the callback. */
#include "program.h"

#include <cuda_runtime.h>

#include <chrono>
#include <thread>

#include "cuda_kernels.h"

extern "C" __global__ void kvtrace_lifetime_target(int *word) { word[threadIdx.x] += 1; }
extern "C" __global__ void kvtrace_lifetime_neighbour(int *word) { word[threadIdx.x] += 2; }

namespace kvtrace_lifetime {
namespace {

constexpr int kThreads = 64;

/* Keep the first error's name; true while there is none. */
bool is_well(cudaError_t result, std::string *error) {
    if (result != cudaSuccess && error->empty()) {
        *error = cudaGetErrorName(result);
    }
    return error->empty();
}

struct Work {
    cudaStream_t stream = nullptr;
    int *word = nullptr;
    cudaGraphExec_t exec = nullptr;
};

/* Wait for what was launched; true if it ran well. */
bool ran_well(const Work &work, std::string *error) {
    return is_well(cudaGetLastError(), error) && is_well(cudaStreamSynchronize(work.stream), error);
}

void launch_neighbour(const Cell &cell, const Work &work) {
    if (cell.same_module) {
        kvtrace_lifetime_neighbour<<<1, kThreads, 0, work.stream>>>(work.word);
    } else {
        kvtrace_lifetime_other<<<1, kThreads, 0, work.stream>>>(work.word);
    }
}

/* Nothing may be loaded while a stream is captured. */
bool load_kernels(std::string *error) {
    cudaFuncAttributes attributes;
    return is_well(cudaFuncGetAttributes(&attributes, kvtrace_lifetime_target), error) &&
           is_well(cudaFuncGetAttributes(&attributes, kvtrace_lifetime_neighbour), error) &&
           is_well(cudaFuncGetAttributes(&attributes, kvtrace_lifetime_other), error);
}

bool capture(const Cell &cell, Work *work, std::string *error) {
    cudaGraph_t graph = nullptr;
    if (!is_well(cudaStreamBeginCapture(work->stream, cudaStreamCaptureModeThreadLocal), error)) {
        return false;
    }
    for (uint32_t i = 0; i < kNodes; ++i) {
        kvtrace_lifetime_target<<<1, kThreads, 0, work->stream>>>(work->word);
        if (cell.has_memset_nodes) {
            is_well(cudaMemsetAsync(work->word, 0, sizeof(int), work->stream), error);
        }
        launch_neighbour(cell, *work);
    }
    is_well(cudaGetLastError(), error);
    return is_well(cudaStreamEndCapture(work->stream, &graph), error) &&
           is_well(cudaGraphInstantiate(&work->exec, graph, 0), error);
}

bool launch_plainly(const Cell &cell, const Work &work, std::string *error) {
    kvtrace_lifetime_target<<<1, kThreads, 0, work.stream>>>(work.word);
    launch_neighbour(cell, work);
    return ran_well(work, error);
}

/* Long enough for a thread that patches meanwhile. */
constexpr auto kPause = std::chrono::milliseconds(300);

/* Loads both kernels, if they are loaded lazily. */
bool launch_first(const Cell &cell, const Work &work, std::string *error) {
    kvtrace_lifetime_target<<<cell.first_blocks, kThreads, 0, work.stream>>>(work.word);
    if (!ran_well(work, error)) {
        return false;
    }
    std::this_thread::sleep_for(kPause);
    launch_neighbour(cell, work);
    return ran_well(work, error);
}

} // namespace

bool map_region(void *region, uint64_t bytes, std::string *error) {
    void *on_device = nullptr;
    if (!is_well(cudaHostRegister(region, bytes, cudaHostRegisterMapped), error) ||
        !is_well(cudaHostGetDevicePointer(&on_device, region, 0), error)) {
        return false;
    }
    if (on_device != region) {
        *error = "host memory has another address on this device";
    }
    return error->empty();
}

uint32_t run(const Cell &cell, void (*before_replay)(uint32_t), std::string *error) {
    Work work;
    if ((cell.first_blocks == 0 && !load_kernels(error)) ||
        !is_well(cudaStreamCreate(&work.stream), error) ||
        !is_well(cudaMalloc(&work.word, kThreads * sizeof(int)), error) ||
        (cell.first_blocks != 0 && !launch_first(cell, work, error)) ||
        (cell.starts_plain && !launch_plainly(cell, work, error)) || !capture(cell, &work, error)) {
        return 0;
    }
    for (uint32_t replay = 0; replay < kReplays; ++replay) {
        before_replay(replay);
        if (!is_well(cudaGraphLaunch(work.exec, work.stream), error) ||
            !is_well(cudaStreamSynchronize(work.stream), error)) {
            return replay;
        }
    }
    return kReplays;
}

} // namespace kvtrace_lifetime
