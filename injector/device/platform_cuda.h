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
/* Volatile, as all below: what the compiler may not move ahead needs no register while it waits. */
KVTRACE_DEVICE uint32_t block_idx_x() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(value));
    return value;
}
KVTRACE_DEVICE uint32_t block_idx_y() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(value));
    return value;
}
KVTRACE_DEVICE uint32_t block_idx_z() {
    uint32_t value;
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(value));
    return value;
}

/* Every address here is in global memory; to say so spares the code for the other spaces. */
KVTRACE_DEVICE uint64_t load(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
KVTRACE_DEVICE uint64_t load_mapped(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
KVTRACE_DEVICE void store(uint64_t *word, uint64_t value) {
    asm volatile("st.volatile.global.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}
KVTRACE_DEVICE void store_mapped(uint32_t *word, uint32_t value) {
    asm volatile("st.volatile.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

/* Nobody writes them while a kernel runs, so the nearest cache will do. */
KVTRACE_DEVICE uint64_t load_constant(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(word));
    return value;
}
KVTRACE_DEVICE uint32_t load_constant(const uint32_t *word) {
    uint32_t value;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(word));
    return value;
}

KVTRACE_DEVICE uint64_t atomic_increment(uint64_t *word) {
    uint64_t before;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(word)
                 : "memory");
    return before;
}
/* Atomic among the threads of this device, which is all that is needed: the host only reads. The 1
 * is one that the compiler does not know: else it keeps the one above in two registers up to here,
 * and has every thread save what they held. */
KVTRACE_DEVICE void increment_mapped(uint64_t *word) {
    const uint64_t one = min(blockDim.x, 1u);
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" : : "l"(word), "l"(one) : "memory");
}

/* What is kept is written to the thread's stack here, and read from there when it is used. */
KVTRACE_DEVICE void keep_in_memory(const void *kept) { asm volatile("" : : "l"(kept) : "memory"); }

/* One store of 16 bytes; volatile, so that it is not split, merged or held back. */
KVTRACE_DEVICE void store_part(kvtrace_block_event *slot, const kvtrace_block_event &event,
                               int part) {
    uint32_t words[4];
    memcpy(words, reinterpret_cast<const char *>(&event) + 16 * part, sizeof(words));
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(reinterpret_cast<char *>(slot) + 16 * part), "r"(words[0]), "r"(words[1]),
                   "r"(words[2]), "r"(words[3])
                 : "memory");
}

} // namespace kvtrace_platform

#endif
