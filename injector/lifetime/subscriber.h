/*
 * The Sanitizer's subscriber of one cell of the lifetime matrix, a library of its own: the driver
 * loads it as CUDA_INJECTION64_PATH says, and the program then asks it for what it saw.
 */
#ifndef KVTRACE_LIFETIME_SUBSCRIBER_H
#define KVTRACE_LIFETIME_SUBSCRIBER_H

#include <cstdint>

/* Set by the program before its first CUDA call: "CALLBACK BINDING POINT SANITIZER_LIBRARY". */
#define KVTRACE_LIFETIME_CELL "KVTRACE_LIFETIME_CELL"
#define KVTRACE_LIFETIME_TARGET "kvtrace_lifetime_target"

extern "C" {
/* Before replay number `replay`, from 0: bind again, if the cell does so. */
__attribute__((visibility("default"))) void kvtrace_lifetime_before_replay(uint32_t replay);
/* Print the cell's outcome as one JSON line; `error` is a CUDA error's name, or empty. */
__attribute__((visibility("default"))) void
kvtrace_lifetime_report(const char *error, uint32_t replays, uint32_t expected_events);
}

#endif
