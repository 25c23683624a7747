/* The kernels of the CUDA program. */
#ifndef KVTRACE_LIFETIME_CUDA_KERNELS_H
#define KVTRACE_LIFETIME_CUDA_KERNELS_H

/* In a source file, and so in a module, of its own, which is never patched. */
extern "C" __global__ void kvtrace_lifetime_other(int *word);

#endif
