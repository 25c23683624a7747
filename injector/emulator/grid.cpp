/* Running thread blocks, with the injector's device callbacks at the entry and stores of each. */
#include "host_platform.h"

#include "../device/block_event.h"

#include "../lifetime/callbacks.h"

#include <time.h>

#include "driver.h"

namespace kvtrace_emu {
namespace {

/* %globaltimer ticks in steps of 32 ns and has an epoch of its own: far from CLOCK_MONOTONIC, so
 * that whoever subtracts the two sees nonsense at once. */
constexpr uint64_t kTimerStepNs = 32;
constexpr uint64_t kTimerEpochNs = 1800000000000000000u;
constexpr uint32_t kMultiprocessors = 132;
/* Threads of a block that store into the cache. */
constexpr uint32_t kStoringThreads = 8;
/* Where a kernel's two stores stand in its code. */
constexpr uint64_t kKeyStorePc = 0x100;
constexpr uint64_t kValueStorePc = 0x140;

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t globaltimer_ns() { return kTimerEpochNs + now_ns() / kTimerStepNs * kTimerStepNs; }

void last_for(uint32_t nanoseconds) {
    if (nanoseconds >= 20000) {
        timespec time = {0, static_cast<long>(nanoseconds)};
        nanosleep(&time, nullptr);
        return;
    }
    for (const uint64_t end = now_ns() + nanoseconds; nanoseconds != 0 && now_ns() < end;) {
    }
}

/* What a kernel's blocks have in common, patched as its module was when it was launched. */
struct Grid {
    const Kernel &kernel;
    const void *data;
    uint32_t patches;
};

/* A pointer that no one bound is not aligned: that is the fault of whatever reads it. */
bool is_readable(const void *data) {
    return reinterpret_cast<uintptr_t>(data) % alignof(kvtrace_callback_data) == 0;
}

/* Only the leader's call at the entry does anything, so only that one is made. */
void enter_block(const Grid &grid) {
    if ((grid.patches & kPatchBlockEnter) != 0) {
        kvtrace_platform::block.globaltimer_ns = globaltimer_ns();
        kvtrace_on_block_enter(grid.data, grid.kernel.function->pc);
    }
    if ((grid.patches & kPatchPointerRead) != 0) {
        kvtrace_lifetime_read_pointer(grid.data, grid.kernel.function->pc);
    }
    if ((grid.patches & kPatchCounter) != 0) {
        kvtrace_lifetime_add_one(grid.data);
    }
}

/* One store instruction, as each thread runs it. */
void store(const Grid &grid, uint64_t pc, uint64_t address) {
    kvtrace_platform::Block &block = kvtrace_platform::block;
    block.globaltimer_ns = globaltimer_ns();
    const uint32_t access_size = grid.kernel.writes.access_size;
    for (uint32_t thread = 0; thread < kStoringThreads; ++thread) {
        block.thread_index = thread;
        kvtrace_on_store(grid.data, pc, address + uint64_t{thread} * access_size, access_size);
    }
    block.thread_index = 0;
}

void write_cache(const Grid &grid) {
    const kvtrace_emu_cache_writes &writes = grid.kernel.writes;
    if (writes.slots == nullptr || (grid.patches & kPatchGlobalAccess) == 0) {
        return;
    }
    const int64_t kv_slot =
        writes.slots->kv_slots[kvtrace_platform::block.x].load(std::memory_order_relaxed);
    if (kv_slot < 0) {
        return;
    }
    const uint64_t offset =
        static_cast<uint64_t>(kv_slot) / writes.block_size * writes.block_stride +
        static_cast<uint64_t>(kv_slot) % writes.block_size * writes.offset_stride;
    const uint64_t pc = grid.kernel.function->pc;
    store(grid, pc + kKeyStorePc, writes.key_address + offset);
    store(grid, pc + kValueStorePc, writes.value_address + offset);
}

} // namespace

uint32_t patches_of(const Kernel &kernel) {
    return kernel.function->module->patches.load(std::memory_order_acquire);
}

bool run_grid(const Kernel &kernel, uint32_t patches, uint64_t grid_id, const void *data) {
    kvtrace_emu_function &function = *kernel.function;
    kvtrace_emu_context *context = function.module->context;
    const Grid grid = {kernel, data, patches};
    static std::atomic<uint32_t> next_multiprocessor{0};
    kvtrace_platform::Block &block = kvtrace_platform::block;
    block.grid_id = grid_id;
    for (block.z = 0; block.z < kernel.grid.z; ++block.z) {
        for (block.y = 0; block.y < kernel.grid.y; ++block.y) {
            for (block.x = 0; block.x < kernel.grid.x; ++block.x) {
                if (context->error.load(std::memory_order_relaxed) != 0) {
                    return false;
                }
                block.sm_id =
                    next_multiprocessor.fetch_add(1, std::memory_order_relaxed) % kMultiprocessors;
                if ((patches & kFollowingPatches) != 0 && !is_readable(data)) {
                    set_error(context, KVTRACE_EMULATOR_MISALIGNED_ADDRESS);
                    return false;
                }
                enter_block(grid);
                last_for(kernel.block_ns);
                write_cache(grid);
                function.blocks_run.fetch_add(1, std::memory_order_relaxed);
            }
        }
    }
    return true;
}

} // namespace kvtrace_emu
