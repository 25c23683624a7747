/* The GPU's registers, atomics and stores, for block_event.h. */
#ifndef KVTRACE_PLATFORM_CUDA_H
#define KVTRACE_PLATFORM_CUDA_H

#include "kvtrace_abi.h"

#define KVTRACE_DEVICE __device__ __forceinline__

namespace kvtrace_platform {

KVTRACE_DEVICE uint64_t globaltimer_ns() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

KVTRACE_DEVICE uint64_t grid_id() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(value));
    return value;
}

KVTRACE_DEVICE uint32_t sm_id() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(value));
    return value;
}

KVTRACE_DEVICE bool is_leader() { return (threadIdx.x | threadIdx.y | threadIdx.z) == 0; }
KVTRACE_DEVICE uint32_t thread_index() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
KVTRACE_DEVICE uint32_t block_idx_x() { return blockIdx.x; }
KVTRACE_DEVICE uint32_t block_idx_y() { return blockIdx.y; }
KVTRACE_DEVICE uint32_t block_idx_z() { return blockIdx.z; }

KVTRACE_DEVICE uint64_t load(const uint64_t *word) {
    return *const_cast<const volatile uint64_t *>(word);
}
KVTRACE_DEVICE uint64_t load_mapped(const uint64_t *word) { return load(word); }
KVTRACE_DEVICE void store(uint64_t *word, uint64_t value) {
    *const_cast<volatile uint64_t *>(word) = value;
}
KVTRACE_DEVICE void store_mapped(uint32_t *word, uint32_t value) {
    *const_cast<volatile uint32_t *>(word) = value;
}

KVTRACE_DEVICE uint64_t atomic_increment(uint64_t *word) {
    return atomicAdd(reinterpret_cast<unsigned long long *>(word), 1ULL);
}
/* Atomic among the threads of this device, which is all that is needed: the host only reads. */
KVTRACE_DEVICE void increment_mapped(uint64_t *word) {
    atomicAdd(reinterpret_cast<unsigned long long *>(word), 1ULL);
}

/* Four stores of 16 bytes; volatile, so that none is split, merged or held back. */
KVTRACE_DEVICE void store_event(kvtrace_block_event *slot, const kvtrace_block_event &event) {
    uint64_t words[8];
    memcpy(words, &event, sizeof(words));
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
                     :
                     : "l"(reinterpret_cast<char *>(slot) + 16 * part), "l"(words[2 * part]),
                       "l"(words[2 * part + 1])
                     : "memory");
    }
}

} // namespace kvtrace_platform

#endif
