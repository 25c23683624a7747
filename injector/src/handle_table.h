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
    /* Its module is patched, and binding it failed: each launch of it has to be bound. */
    bool is_unbound = false;
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
    bool find(const void *function, FunctionInfo *info) const {
        const uint32_t start = first_place(function);
        for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
            const Entry &entry = entries_[(start + probe) & (kCapacity - 1)];
            const void *found = entry.function.load(std::memory_order_acquire);
            if (found == function) {
                const uint64_t bits = entry.info.load(std::memory_order_relaxed);
                info->kernel_slot = static_cast<uint32_t>(bits >> 2);
                info->is_patched = (bits & 1u) != 0;
                info->is_unbound = (bits & 2u) != 0;
                return true;
            }
            if (found == nullptr) {
                return false;
            }
        }
        return false;
    }
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
    static uint32_t first_place(const void *function) {
        const auto bits = reinterpret_cast<uintptr_t>(function);
        return static_cast<uint32_t>((bits * 0x9e3779b97f4a7c15u) >> 49) & (kCapacity - 1);
    }

    Entry *entries_ = nullptr;
    std::mutex write_mutex_;
};

} // namespace kvtrace

#endif
