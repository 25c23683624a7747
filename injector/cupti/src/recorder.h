/* The state of the CUPTI observer in this process: made once, leaked on purpose, as late threads
 * of CUPTI call back while the process exits. */
#ifndef KVTRACE_CUPTI_RECORDER_H
#define KVTRACE_CUPTI_RECORDER_H

#include <cstddef>

namespace kvtrace {

/*
 * Read the config, load CUPTI, and let it record. False: this process is not recorded; stderr says
 * why, and so does its journal, if its place is known.
 */
bool begin_recording(const char *config_path);

/* Take what CUPTI still has and close the files, once a process; who comes second waits. */
void end_recording(const char *reason);

} // namespace kvtrace

/* For a process that ends without exit handlers: called by the engine plug-in. */
extern "C" __attribute__((visibility("default"))) void kvtrace_end_recording(void) noexcept;

#endif
