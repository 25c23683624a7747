/* A kernel in a module of its own, which the injector has no reason to patch. */
__global__ void other_kernel(unsigned long long *counters) {
    if (threadIdx.x == 0) {
        atomicAdd(&counters[2], 1ULL);
    }
}

void *other_kernel_address() { return reinterpret_cast<void *>(other_kernel); }
