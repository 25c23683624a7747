/* A host stand-in for the GPU's registers and stores, so that block_event.h runs in plain threads.
 */
#ifndef KVTRACE_HOST_PLATFORM_H
#define KVTRACE_HOST_PLATFORM_H

#include <cstddef>
#include <cstring>

#include "kvtrace_abi.h"

#define KVTRACE_DEVICE inline

namespace kvtrace_platform {

/* The block that this thread runs, and which of its threads it is just now. */
struct Block {
    uint64_t grid_id = 0;
    uint64_t globaltimer_ns = 0;
    uint32_t x = 0;
    uint32_t y = 0;
    uint32_t z = 0;
    uint32_t sm_id = 0;
    uint32_t thread_index = 0;
};
inline thread_local Block block;

inline uint64_t globaltimer_ns() { return block.globaltimer_ns; }
inline uint64_t grid_id() { return block.grid_id; }
inline uint32_t sm_id() { return block.sm_id; }
inline bool is_leader() { return block.thread_index == 0; }
inline uint32_t thread_index() { return block.thread_index; }
inline uint32_t block_idx_x() { return block.x; }
inline uint32_t block_idx_y() { return block.y; }
inline uint32_t block_idx_z() { return block.z; }

inline uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
inline uint64_t load_mapped(const uint64_t *word) { return load(word); }
inline void store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline void store_mapped(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline uint64_t atomic_increment(uint64_t *word) {
    return __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
}
inline void increment_mapped(uint64_t *word) { __atomic_fetch_add(word, 1, __ATOMIC_RELAXED); }

inline uint64_t load_constant(const uint64_t *word) { return *word; }
inline uint32_t load_constant(const uint32_t *word) { return *word; }

inline void keep_in_memory(const void *) {}

/* A host has no 16-byte store that is one for every reader, so each tag follows its part. */
inline void store_part(kvtrace_block_event *slot, const kvtrace_block_event &event, int part) {
    uint16_t *tags[] = {&slot->tag0, &slot->tag1, &slot->tag2, &slot->tag3};
    const std::ptrdiff_t offset = std::ptrdiff_t{16} * part;
    std::memcpy(reinterpret_cast<char *>(slot) + offset,
                reinterpret_cast<const char *>(&event) + offset, 14);
    __atomic_store_n(tags[part], event.tag0, __ATOMIC_RELEASE);
}

} // namespace kvtrace_platform

#endif
