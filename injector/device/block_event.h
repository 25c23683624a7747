/*
 * What the device callbacks do, free of any platform: the includer supplies namespace
 * kvtrace_platform first (platform_cuda.h on the GPU, the emulator's stand-in on a host).
 *
 * It never waits, allocates or fails: no space is counted as a drop.
 */
#ifndef KVTRACE_BLOCK_EVENT_H
#define KVTRACE_BLOCK_EVENT_H

#include "kvtrace_abi.h"

/*
 * Reserve the next sequence. Returns false when the ring has no space for it; the sequence is then
 * a hole, told to the drain thread by a hint so that it does not wait for an event that never
 * comes.
 */
KVTRACE_DEVICE bool kvtrace_reserve(const kvtrace_callback_data *data, uint64_t *sequence) {
    kvtrace_device_counters *counters =
        reinterpret_cast<kvtrace_device_counters *>(data->counters_address);
    kvtrace_ring_control *control = reinterpret_cast<kvtrace_ring_control *>(data->control_address);
    const uint64_t capacity = uint64_t{1} << data->capacity_log2;
    const uint64_t reserved = kvtrace_platform::atomic_increment(&counters->reserved_count);
    *sequence = reserved;
    if (data->one_shot != 0) {
        if (reserved < capacity) {
            return true;
        }
    } else {
        if (reserved - kvtrace_platform::load(&counters->drained_cache) < capacity) {
            return true;
        }
        /* The cached count says full; the true one is a read over the bus. A racing older value
         * stored here only costs another such read. */
        const uint64_t drained = kvtrace_platform::load_mapped(&control->drained_count);
        kvtrace_platform::store(&counters->drained_cache, drained);
        if (reserved - drained < capacity) {
            return true;
        }
        uint32_t *hints = reinterpret_cast<uint32_t *>(data->drop_hints_address);
        kvtrace_platform::store_mapped(&hints[reserved & (capacity - 1)],
                                       static_cast<uint32_t>(reserved >> data->capacity_log2) + 1);
    }
    kvtrace_platform::increment_mapped(&control->dropped_count);
    return false;
}

/* What differs from event to event of one kernel; see kvtrace_block_event. */
struct kvtrace_event_subject {
    uint64_t pc;
    uint64_t address;
    uint8_t event_kind;
    uint8_t access_size;
    uint16_t thread_index;
};

/* Record one event of the calling thread. Returns false when it was dropped. */
KVTRACE_DEVICE bool kvtrace_record(const kvtrace_callback_data *data,
                                   const kvtrace_event_subject &subject) {
    kvtrace_block_event event;
    event.gpu_globaltimer_ns = kvtrace_platform::globaltimer_ns();
    uint64_t sequence;
    if (!kvtrace_reserve(data, &sequence)) {
        return false;
    }
    const uint16_t tag = static_cast<uint16_t>((sequence >> data->capacity_log2) + 1);
    const uint64_t mask = (uint64_t{1} << data->capacity_log2) - 1;
    event.block_idx_x = kvtrace_platform::block_idx_x();
    event.block_idx_y = static_cast<uint16_t>(kvtrace_platform::block_idx_y());
    event.tag0 = tag;
    event.pc = subject.pc;
    event.launch_stamp = data->launch_stamp;
    event.block_idx_z = static_cast<uint16_t>(kvtrace_platform::block_idx_z());
    event.tag1 = tag;
    event.grid_id = kvtrace_platform::grid_id();
    event.kernel_slot = data->kernel_slot;
    event.sm_id = static_cast<uint16_t>(kvtrace_platform::sm_id());
    event.tag2 = tag;
    event.address = subject.address;
    event.event_kind = subject.event_kind;
    event.access_size = subject.access_size;
    event.thread_index = subject.thread_index;
    event.sequence_low = static_cast<uint16_t>(sequence);
    event.tag3 = tag;
    kvtrace_platform::store_event(
        reinterpret_cast<kvtrace_block_event *>(data->ring_address) + (sequence & mask), event);
    return true;
}

/* The calling thread's block enters a kernel. Each thread of the block calls; the leader's counts.
 * `userdata` is NULL for functions that are no target. */
KVTRACE_DEVICE void kvtrace_on_block_enter(const void *userdata, uint64_t pc) {
    if (userdata == nullptr || !kvtrace_platform::is_leader()) {
        return;
    }
    const kvtrace_callback_data *data = static_cast<const kvtrace_callback_data *>(userdata);
    if (data->magic == KVTRACE_CALLBACK_DATA_MAGIC) {
        kvtrace_record(data, {pc, 0, KVTRACE_EVENT_BLOCK_ENTER, 0, 0});
    }
}

/* The calling thread is about to store `access_size` bytes to global memory at `address`. */
KVTRACE_DEVICE void kvtrace_on_store(const void *userdata, uint64_t pc, uint64_t address,
                                     uint32_t access_size) {
    if (userdata == nullptr) {
        return;
    }
    const kvtrace_callback_data *data = static_cast<const kvtrace_callback_data *>(userdata);
    const uint32_t least_mode =
        kvtrace_platform::is_leader() ? KVTRACE_STORES_LEADER : KVTRACE_STORES_ALL;
    if (data->magic != KVTRACE_CALLBACK_DATA_MAGIC || data->store_mode < least_mode) {
        return;
    }
    const kvtrace_event_subject subject = {pc, address, KVTRACE_EVENT_GLOBAL_STORE,
                                           static_cast<uint8_t>(access_size),
                                           static_cast<uint16_t>(kvtrace_platform::thread_index())};
    if (!kvtrace_record(data, subject)) {
        kvtrace_platform::increment_mapped(
            &reinterpret_cast<kvtrace_ring_control *>(data->control_address)->dropped_store_count);
    }
}

#endif
