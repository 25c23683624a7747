/* See block_rate.h. */
#include "block_rate.h"

#include <cuda_runtime.h>

#include <cstdlib>

__global__ void probe_target(float *never) {
    if (never != nullptr) {
        never[blockIdx.x] = 1;
    }
}

namespace {

constexpr unsigned kThreads = 64;

void check(cudaError_t result) {
    if (result != cudaSuccess) {
        std::printf("{\"error\": \"%s\"}\n", cudaGetErrorString(result));
        std::fflush(stdout);
        std::_Exit(9);
    }
}

} // namespace

int main() {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return kvtrace_block_rate::serve(
        [stream](unsigned blocks) {
            probe_target<<<blocks, kThreads, 0, stream>>>(nullptr);
            check(cudaGetLastError());
        },
        [stream] { check(cudaStreamSynchronize(stream)); });
}
