/* What a recording process has once: journal, launch file, drain thread. Made at its first context.
 */
#ifndef KVTRACE_PROCESS_H
#define KVTRACE_PROCESS_H

#include "injector.h"

namespace kvtrace {

/* Idempotent. False if the process cannot record; the reason was recorded. */
bool set_up_process(Injector *self);

/* A header for a file of this process; the caller fills in what differs. */
kvtrace_file_header make_file_header(const Injector &self);

/* Absolute path of a raw file of this process, such as raw/<pid>-0.events.kvt. */
void raw_file_path(const Injector &self, char *path, size_t path_size, const char *suffix);

} // namespace kvtrace

#endif
