/* The buffers that CUPTI fills: made once, handed out, written, handed out again. */
#ifndef KVTRACE_BUFFER_POOL_H
#define KVTRACE_BUFFER_POOL_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace kvtrace {

/*
 * Any thread may call any method; the lock is held for a few instructions and never over a call to
 * anybody else. Nothing is allocated after `allocate`.
 */
class BufferPool {
  public:
    struct Filled {
        uint8_t *buffer = nullptr;
        size_t valid_bytes = 0;
    };

    /* Once, before anything else. Memory is only taken where it is written to. */
    bool allocate(uint32_t count, size_t bytes);

    /* A free buffer of `buffer_bytes`, or NULL if all are filled or being filled. */
    uint8_t *take();
    size_t buffer_bytes() const { return bytes_; }

    /* CUPTI is done with a buffer. */
    void add_filled(uint8_t *buffer, size_t valid_bytes);

    /* The one that waits longest; false if none does. */
    bool next_filled(Filled *filled);

    /* What next_filled gave is written and may be taken again. */
    void give_back(uint8_t *buffer);

  private:
    std::mutex mutex_;
    std::unique_ptr<uint8_t *[]> free_;
    std::unique_ptr<Filled[]> filled_;
    uint32_t count_ = 0;
    size_t bytes_ = 0;
    uint32_t free_count_ = 0;
    /* A ring: no more buffers can wait than there are. */
    uint32_t first_filled_ = 0;
    uint32_t filled_count_ = 0;
};

} // namespace kvtrace

#endif
