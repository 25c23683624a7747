#include "handle_table.h"

#include <new>

namespace kvtrace {
namespace {

/* Marks a place whose entry was forgotten: probing goes on past it, inserting reuses it. */
const char kForgotten = 0;

uint64_t pack(FunctionInfo info) {
    return (static_cast<uint64_t>(info.kernel_slot) << 2) | (info.is_unbound ? 2u : 0u) |
           (info.is_patched ? 1u : 0u);
}

} // namespace

bool HandleTable::allocate() {
    entries_ = new (std::nothrow) Entry[kCapacity]();
    return entries_ != nullptr;
}

void HandleTable::insert(const void *function, const void *module, FunctionInfo info) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    Entry *place = nullptr;
    const uint32_t start = first_place(function);
    for (uint32_t probe = 0; probe < kMaxProbes; ++probe) {
        Entry &entry = entries_[(start + probe) & (kCapacity - 1)];
        const void *found = entry.function.load(std::memory_order_relaxed);
        if (found == function) {
            place = &entry;
            break;
        }
        if (place == nullptr && (found == nullptr || found == &kForgotten)) {
            place = &entry;
        }
        if (found == nullptr) {
            break;
        }
    }
    if (place != nullptr) {
        place->module = module;
        place->info.store(pack(info), std::memory_order_relaxed);
        place->function.store(function, std::memory_order_release);
    }
}

void HandleTable::forget_module(const void *module) {
    const std::lock_guard<std::mutex> lock(write_mutex_);
    for (uint32_t i = 0; i < kCapacity; ++i) {
        const void *found = entries_[i].function.load(std::memory_order_relaxed);
        if (found != nullptr && found != &kForgotten && entries_[i].module == module) {
            entries_[i].function.store(&kForgotten, std::memory_order_release);
        }
    }
}

} // namespace kvtrace
