/* Reading what the launcher wrote. */
#ifndef KVTRACE_ACTIVITY_CONFIG_H
#define KVTRACE_ACTIVITY_CONFIG_H

#include <cstddef>

#include "kvtrace_activity.h"

namespace kvtrace {

/* False, with a text that says what is wrong with the file. */
bool read_activity_config(const char *path, kvtrace_activity_config *config, char *error,
                          size_t error_size);

} // namespace kvtrace

#endif
