/*
 * The memory that program, subscriber and device callbacks of the lifetime matrix share: host
 * memory mapped into the device, which can be read after a fault has ended the context.
 */
#ifndef KVTRACE_LIFETIME_REGION_H
#define KVTRACE_LIFETIME_REGION_H

#include "kvtrace_abi.h"

/* Where it is, in the process and on the device: far from programs, libraries and stacks. */
#define KVTRACE_LIFETIME_ADDRESS 0x500000000000ull
#define KVTRACE_LIFETIME_MOST_SEEN 4096
#define KVTRACE_LIFETIME_MOST_DATA 1024
#define KVTRACE_LIFETIME_RING_LOG2 12
#define KVTRACE_LIFETIME_RING_EVENTS (1 << KVTRACE_LIFETIME_RING_LOG2)

/* What one call of the callback was given. */
struct kvtrace_lifetime_seen {
    uint64_t grid_id;
    uint64_t userdata;
    uint64_t pc;
    uint64_t reserved;
};

/* What is bound: data 0 to the target function, the others to launches or, in turn, to it. */
struct alignas(16) kvtrace_lifetime_data {
    /* First, so that the injector's own callback can be given this as well. */
    kvtrace_callback_data data;
    uint64_t count;
};

struct kvtrace_lifetime_region {
    uint64_t seen_count;
    uint64_t padding[7];
    kvtrace_lifetime_seen seen[KVTRACE_LIFETIME_MOST_SEEN];
    kvtrace_device_counters counters;
    uint64_t more_padding[6];
    kvtrace_ring_control control;
    kvtrace_block_event events[KVTRACE_LIFETIME_RING_EVENTS];
    uint32_t drop_hints[KVTRACE_LIFETIME_RING_EVENTS];
    kvtrace_lifetime_data data[KVTRACE_LIFETIME_MOST_DATA];
};

#endif
