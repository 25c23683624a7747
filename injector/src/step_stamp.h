/* Which step of the engine a launch belongs to. */
#ifndef KVTRACE_STEP_STAMP_H
#define KVTRACE_STEP_STAMP_H

#include <cstdint>

namespace kvtrace {

/* The step of what the calling thread launches now: the thread's own last stamp if it ever set one,
 * else the process's latest. 0 means none. */
uint32_t current_step_stamp();

} // namespace kvtrace

/*
 * For the engine plug-in, before each step's first launch and after its last (0). Any thread, at
 * any time, also where nothing is recorded; it takes no lock and cannot fail.
 */
extern "C" __attribute__((visibility("default"))) void
kvtrace_set_step(uint32_t step_stamp) noexcept;

#endif
