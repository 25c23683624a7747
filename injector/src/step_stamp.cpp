#include "step_stamp.h"

#include <atomic>

namespace {

std::atomic<uint32_t> latest_stamp{0};
/* Several engines may share a process, each with a thread of its own. */
thread_local uint32_t own_stamp = 0;
thread_local bool has_own_stamp = false;

} // namespace

namespace kvtrace {

uint32_t current_step_stamp() {
    return has_own_stamp ? own_stamp : latest_stamp.load(std::memory_order_relaxed);
}

} // namespace kvtrace

void kvtrace_set_step(uint32_t step_stamp) noexcept {
    own_stamp = step_stamp;
    has_own_stamp = true;
    latest_stamp.store(step_stamp, std::memory_order_relaxed);
}
