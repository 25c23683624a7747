#include "launch_ring.h"

#include <new>

namespace kvtrace {

bool LaunchRing::allocate(uint32_t capacity, bool one_shot) {
    records_ = new (std::nothrow) kvtrace_launch_record[capacity];
    published_ = new (std::nothrow) std::atomic<uint32_t>[capacity];
    if (records_ == nullptr || published_ == nullptr) {
        return false;
    }
    for (uint32_t i = 0; i < capacity; ++i) {
        published_[i].store(0, std::memory_order_relaxed);
    }
    capacity_ = capacity;
    capacity_log2_ = static_cast<uint32_t>(__builtin_ctz(capacity));
    one_shot_ = one_shot;
    return true;
}

bool LaunchRing::reserve(uint64_t *position) {
    uint64_t next = reserved_.load(std::memory_order_relaxed);
    while (true) {
        const uint64_t freed = freed_.load(std::memory_order_acquire);
        /* Other writers and the reader may have gone past `next` since it was read: then it is out
         * of date, and the difference would wrap round to look like a full ring. */
        if (freed > next) {
            next = reserved_.load(std::memory_order_relaxed);
        } else if (next - freed >= capacity_) {
            return false;
        } else if (reserved_.compare_exchange_weak(next, next + 1, std::memory_order_relaxed)) {
            *position = next;
            return true;
        }
    }
}

bool LaunchRing::append(const kvtrace_launch_record &record) {
    uint64_t position = 0;
    if (!reserve(&position)) {
        const uint64_t blocks = uint64_t{record.grid_dim_x} * record.grid_dim_y * record.grid_dim_z;
        dropped_blocks_.fetch_add(blocks, std::memory_order_relaxed);
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return false;
    }
    const uint64_t place = position & (capacity_ - 1);
    records_[place] = record;
    published_[place].store(lap_of(position), std::memory_order_release);
    return true;
}

size_t LaunchRing::peek(const kvtrace_launch_record **first) const {
    const uint64_t place = taken_ & (capacity_ - 1);
    const uint32_t lap = lap_of(taken_);
    *first = &records_[place];
    size_t count = 0;
    while (place + count < capacity_ &&
           published_[place + count].load(std::memory_order_acquire) == lap) {
        ++count;
    }
    return count;
}

void LaunchRing::consume(size_t count) {
    taken_ += count;
    if (!one_shot_) {
        freed_.store(taken_, std::memory_order_release);
    }
}

} // namespace kvtrace
