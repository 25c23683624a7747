/* The kvtrace ABI for C, C++ and CUDA. See kvtrace_abi_decl.h. */
#ifndef KVTRACE_ABI_H
#define KVTRACE_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "kvtrace_abi_decl.h"

#ifdef __cplusplus
#define KVTRACE_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define KVTRACE_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

KVTRACE_STATIC_ASSERT(sizeof(kvtrace_file_header) == 64, "file header");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_block_event) == 64, "block event");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_launch_record) == 96, "launch record");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_callback_data) == 64, "callback data");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_device_counters) == 16, "device counters");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_ring_control) == 128, "ring control");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_config) ==
                          40 + 2 * KVTRACE_PATH_BYTES + KVTRACE_MAX_TARGETS * KVTRACE_NAME_BYTES,
                      "config");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_block_event, tag0) == 14, "tag 0");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_block_event, tag1) == 30, "tag 1");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_block_event, tag2) == 46, "tag 2");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_block_event, tag3) == 62, "tag 3");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_launch_record, exec_generation) == 48, "launch words");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_launch_record, launch_kind) == 88, "launch bytes");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_ring_control, dropped_count) == 64, "one line a word");

#endif
