/*
 * What the device callbacks of the lifetime matrix do, from the one that reads nothing to the one
 * that records whole events; free of any platform, as ../device/block_event.h, which comes first.
 */
#ifndef KVTRACE_LIFETIME_CALLBACKS_H
#define KVTRACE_LIFETIME_CALLBACKS_H

#include "region.h"

/* Keep the pointer that the callback was given, which is not looked behind. Where to keep it is an
 * address known when this is compiled: there is nothing to read that a binding could spoil. */
KVTRACE_DEVICE void kvtrace_lifetime_read_pointer(const void *userdata, uint64_t pc) {
    if (!kvtrace_platform::is_leader()) {
        return;
    }
    kvtrace_lifetime_region *region =
        reinterpret_cast<kvtrace_lifetime_region *>(KVTRACE_LIFETIME_ADDRESS);
    const uint64_t place = kvtrace_platform::atomic_increment(&region->seen_count);
    if (place < KVTRACE_LIFETIME_MOST_SEEN) {
        kvtrace_platform::store(&region->seen[place].grid_id, kvtrace_platform::grid_id());
        kvtrace_platform::store(&region->seen[place].userdata,
                                reinterpret_cast<uint64_t>(userdata));
        kvtrace_platform::store(&region->seen[place].pc, pc);
    }
}

/* The smallest callback with a state: follow the pointer once and add one. */
KVTRACE_DEVICE void kvtrace_lifetime_add_one(const void *userdata) {
    if (userdata != nullptr && kvtrace_platform::is_leader()) {
        kvtrace_lifetime_data *data =
            static_cast<kvtrace_lifetime_data *>(const_cast<void *>(userdata));
        kvtrace_platform::atomic_increment(&data->count);
    }
}

#endif
