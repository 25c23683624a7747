/* Reading what the launcher asked for. */
#ifndef KVTRACE_CONFIG_H
#define KVTRACE_CONFIG_H

#include <cstddef>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * Read and check the config struct in the file at `path`. Returns false with a one-line reason if
 * the file is missing, of another ABI version, or holds values that cannot work.
 */
bool read_config(const char *path, kvtrace_config *config, char *error, size_t error_size);

/* Which stores of target kernels are to be recorded, from the flags. */
kvtrace_store_mode store_mode(const kvtrace_config &config);

} // namespace kvtrace

#endif
