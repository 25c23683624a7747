/* The host clock of every record. */
#ifndef KVTRACE_CLOCK_H
#define KVTRACE_CLOCK_H

#include <time.h>

#include <cstdint>

namespace kvtrace {

inline uint64_t host_monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

} // namespace kvtrace

#endif
