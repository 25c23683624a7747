/* CUDA function handles -> what we know of them. Lock-free to read, so that every launch can ask.
 */
#ifndef KVTRACE_HANDLE_TABLE_H
#define KVTRACE_HANDLE_TABLE_H

#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvtrace {

struct FunctionInfo {
    /* Number of a target kernel, or kNotTarget. */
    uint32_t kernel_slot;
    bool is_patched;
};

constexpr uint32_t kNotTarget = 0xffffffffu;

/*
 * A fixed open-addressing table. Handles come back after a module is unloaded, so all entries of a
 * module are forgotten then. A full table only makes the caller look the name up again.
 */
class HandleTable {
  public:
    bool allocate();
    /* Any thread, no lock. */
    bool find(const void *function, FunctionInfo *info) const;
    void insert(const void *function, const void *module, FunctionInfo info);
    void forget_module(const void *module);

  private:
    static constexpr uint32_t kCapacity = 1u << 15;
    static constexpr uint32_t kMaxProbes = 64;
    struct Entry {
        std::atomic<const void *> function;
        std::atomic<uint64_t> info;
        const void *module;
    };
    static uint32_t first_place(const void *function);

    Entry *entries_ = nullptr;
    std::mutex write_mutex_;
};

} // namespace kvtrace

#endif
