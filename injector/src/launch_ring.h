/* Launch records between the application's threads and the drain thread. No CUDA types. */
#ifndef KVTRACE_LAUNCH_RING_H
#define KVTRACE_LAUNCH_RING_H

#include <atomic>
#include <cstddef>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * Many writers, one reader. A writer reserves a place only if it is free, fills it and publishes it
 * with a release-store; a full ring counts the drop and returns. Nobody waits.
 */
class LaunchRing {
  public:
    /* Allocate once; false without memory. `capacity` is a power of two. */
    bool allocate(uint32_t capacity, bool one_shot);

    /* Any thread. False: no space, counted. */
    bool append(const kvtrace_launch_record &record);

    /* Reader only: the longest contiguous run of published records at the front; 0 if none. */
    size_t peek(const kvtrace_launch_record **first) const;
    /* Reader only: these records were taken. In one-shot mode their space is not given back. */
    void consume(size_t count);

    uint64_t dropped_count() const { return dropped_.load(std::memory_order_relaxed); }
    /* Blocks that the dropped launches had, so that the books of blocks still balance. */
    uint64_t dropped_blocks() const { return dropped_blocks_.load(std::memory_order_relaxed); }

  private:
    /* Take the next place; false if the ring is full. */
    bool reserve(uint64_t *position);
    uint32_t lap_of(uint64_t position) const {
        return static_cast<uint32_t>(position >> capacity_log2_) + 1;
    }

    kvtrace_launch_record *records_ = nullptr;
    std::atomic<uint32_t> *published_ = nullptr;
    uint32_t capacity_log2_ = 0;
    uint64_t capacity_ = 0;
    bool one_shot_ = false;
    uint64_t taken_ = 0;
    alignas(64) std::atomic<uint64_t> reserved_{0};
    alignas(64) std::atomic<uint64_t> freed_{0};
    alignas(64) std::atomic<uint64_t> dropped_{0};
    std::atomic<uint64_t> dropped_blocks_{0};
};

} // namespace kvtrace

#endif
