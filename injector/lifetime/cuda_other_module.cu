#include "cuda_kernels.h"

extern "C" __global__ void kvtrace_lifetime_other(int *word) { word[threadIdx.x] += 3; }
