#include "buffer_pool.h"

#include <sys/mman.h>

#include <new>

namespace kvtrace {

bool BufferPool::allocate(uint32_t count, size_t bytes) {
    void *memory = mmap(nullptr, count * bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    free_.reset(new (std::nothrow) uint8_t *[count]);
    filled_.reset(new (std::nothrow) Filled[count]);
    if (memory == MAP_FAILED || !free_ || !filled_) {
        return false;
    }
    for (uint32_t i = 0; i < count; ++i) {
        /* The first is taken first, so that few are ever written to where few are enough. */
        free_[count - 1 - i] = static_cast<uint8_t *>(memory) + i * bytes;
    }
    count_ = count;
    bytes_ = bytes;
    free_count_ = count;
    return true;
}

uint8_t *BufferPool::take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return free_count_ > 0 ? free_[--free_count_] : nullptr;
}

void BufferPool::add_filled(uint8_t *buffer, size_t valid_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    filled_[(first_filled_ + filled_count_) % count_] = {buffer, valid_bytes};
    ++filled_count_;
}

bool BufferPool::next_filled(Filled *filled) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (filled_count_ == 0) {
        return false;
    }
    *filled = filled_[first_filled_];
    first_filled_ = (first_filled_ + 1) % count_;
    --filled_count_;
    return true;
}

void BufferPool::give_back(uint8_t *buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_[free_count_++] = buffer;
}

} // namespace kvtrace
