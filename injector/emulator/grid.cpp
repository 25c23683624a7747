/* Running thread blocks, with the injector's device callback at the entry of each. */
#include "host_platform.h"

#include "../device/block_event.h"

#include <time.h>

#include "driver.h"

namespace kvtrace_emu {
namespace {

/* %globaltimer ticks in steps of 32 ns and has an epoch of its own: far from CLOCK_MONOTONIC, so
 * that whoever subtracts the two sees nonsense at once. */
constexpr uint64_t kTimerStepNs = 32;
constexpr uint64_t kTimerEpochNs = 1800000000000000000u;
constexpr uint32_t kMultiprocessors = 132;

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

/* The patched entry of one block. A pointer that no one bound is not aligned: that is the fault. */
bool enter_block(const void *data, uint64_t pc) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (address % alignof(kvtrace_callback_data) != 0) {
        return false;
    }
    if (data != nullptr) {
        kvtrace_record_block_enter(static_cast<const kvtrace_callback_data *>(data), pc);
    }
    return true;
}

} // namespace

bool run_grid(const Kernel &kernel, uint64_t grid_id, const void *data) {
    kvtrace_emu_function &function = *kernel.function;
    kvtrace_emu_context *context = function.module->context;
    const bool is_patched = function.module->is_patched.load(std::memory_order_acquire);
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
                block.globaltimer_ns = globaltimer_ns();
                if (is_patched && !enter_block(data, function.pc)) {
                    set_error(context, KVTRACE_EMULATOR_MISALIGNED_ADDRESS);
                    return false;
                }
                last_for(kernel.block_ns);
                function.blocks_run.fetch_add(1, std::memory_order_relaxed);
            }
        }
    }
    return true;
}

} // namespace kvtrace_emu
