/* Moving records from the rings into the files. */
#ifndef KVTRACE_DRAIN_H
#define KVTRACE_DRAIN_H

#include "injector.h"

namespace kvtrace {

/* Start the drain thread, and see to it that an orderly exit of the process ends the recording. */
bool start_drain(Injector *self);

/* The context is about to go: take what is whole, close its file, never look at its memory again.
 */
void close_context(Injector *self, Context *context);

/* Whether the recording has ended: what comes now is recorded no more. */
bool has_ended(const Injector &self);

/* After each launch that was put into the launch ring: if the recording has ended by then, nobody
 * may ever take it from there, and the launch file says no more that it is complete. */
void launch_appended(Injector *self);

} // namespace kvtrace

/*
 * For the engine plug-in, at the end of a process that runs no exit handlers: what those would do.
 * Any thread, at any time, also where nothing is recorded; it waits for at most seconds. Once a
 * process: from the second call on, and in the exit handler, there is nothing left to do.
 */
extern "C" __attribute__((visibility("default"))) void kvtrace_end_recording(void) noexcept;

#endif
