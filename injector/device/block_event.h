/*
 * What the device callbacks do, free of any platform: the includer supplies namespace
 * kvtrace_platform first (platform_cuda.h on the GPU, the emulator's stand-in on a host).
 *
 * It never waits, allocates or fails: no space is counted as a drop.
 */
#ifndef KVTRACE_BLOCK_EVENT_H
#define KVTRACE_BLOCK_EVENT_H

#include "kvtrace_abi.h"

KVTRACE_DEVICE kvtrace_device_counters *kvtrace_counters(const kvtrace_callback_data *data) {
    return reinterpret_cast<kvtrace_device_counters *>(
        kvtrace_platform::load_constant(&data->counters_address));
}

KVTRACE_DEVICE kvtrace_ring_control *kvtrace_control(const kvtrace_callback_data *data) {
    return reinterpret_cast<kvtrace_ring_control *>(
        kvtrace_platform::load_constant(&data->control_address));
}

/*
 * The cached count says that the ring is full: look at the true one, a read over the bus. Returns
 * false when there is no space indeed; the sequence is then a hole, told to the drain thread by a
 * hint so that it does not wait for an event that never comes.
 *
 * What it needs is read here again, not handed over: it is rare, and every register that it takes
 * from its caller would be saved by all threads of all blocks.
 */
KVTRACE_DEVICE bool kvtrace_look_for_space(const kvtrace_callback_data *data,
                                           uint32_t capacity_log2, uint64_t sequence) {
    /* In one-shot mode nothing is ever drained. */
    if (kvtrace_platform::load_constant(&data->one_shot) == 0) {
        const uint64_t drained =
            kvtrace_platform::load_mapped(&kvtrace_control(data)->drained_count);
        /* A racing older value stored here only costs another such look. */
        kvtrace_platform::store(&kvtrace_counters(data)->drained_cache, drained);
        if ((sequence - drained) >> capacity_log2 == 0) {
            return true;
        }
        const uint32_t place = static_cast<uint32_t>(sequence) & ((1u << capacity_log2) - 1);
        uint32_t *hints = reinterpret_cast<uint32_t *>(
            kvtrace_platform::load_constant(&data->drop_hints_address));
        kvtrace_platform::store_mapped(&hints[place],
                                       static_cast<uint32_t>(sequence >> capacity_log2) + 1);
    }
    kvtrace_platform::increment_mapped(&kvtrace_control(data)->dropped_count);
    return false;
}

/* Reserve the next sequence. Returns false when the ring has no space for it. */
KVTRACE_DEVICE bool kvtrace_reserve(const kvtrace_callback_data *data, uint32_t capacity_log2,
                                    uint64_t *sequence) {
    kvtrace_device_counters *counters = kvtrace_counters(data);
    /* Before the reservation, so that both are on their way at once: an older count only costs
     * another look. */
    const uint64_t drained = kvtrace_platform::load(&counters->drained_cache);
    *sequence = kvtrace_platform::atomic_increment(&counters->reserved_count);
    return (*sequence - drained) >> capacity_log2 == 0 ||
           kvtrace_look_for_space(data, capacity_log2, *sequence);
}

/* What differs from event to event of one kernel; see kvtrace_block_event. */
struct kvtrace_event_subject {
    uint64_t pc;
    uint64_t address;
    uint32_t event_kind;
    uint32_t access_size;
    uint32_t thread_index;
};

/* Record one event of the calling thread, each part as soon as it is known. Returns false when it
 * was dropped. */
KVTRACE_DEVICE bool kvtrace_record(const kvtrace_callback_data *data,
                                   const kvtrace_event_subject &subject) {
    kvtrace_block_event event;
    event.gpu_globaltimer_ns = kvtrace_platform::globaltimer_ns();
    const uint32_t capacity_log2 = kvtrace_platform::load_constant(&data->capacity_log2);
    uint64_t sequence;
    if (!kvtrace_reserve(data, capacity_log2, &sequence)) {
        return false;
    }
    const uint32_t place = static_cast<uint32_t>(sequence) & ((1u << capacity_log2) - 1);
    kvtrace_block_event *slot = reinterpret_cast<kvtrace_block_event *>(
                                    kvtrace_platform::load_constant(&data->ring_address)) +
                                place;
    const uint16_t tag = static_cast<uint16_t>((sequence >> capacity_log2) + 1);
    event.block_idx_x = kvtrace_platform::block_idx_x();
    event.block_idx_y = static_cast<uint16_t>(kvtrace_platform::block_idx_y());
    event.tag0 = tag;
    kvtrace_platform::store_part(slot, event, 0);
    event.pc = subject.pc;
    event.launch_stamp = kvtrace_platform::load_constant(&data->launch_stamp);
    event.block_idx_z = static_cast<uint16_t>(kvtrace_platform::block_idx_z());
    event.tag1 = tag;
    kvtrace_platform::store_part(slot, event, 1);
    event.grid_id = kvtrace_platform::grid_id();
    event.kernel_slot = kvtrace_platform::load_constant(&data->kernel_slot);
    event.sm_id = static_cast<uint16_t>(kvtrace_platform::sm_id());
    event.tag2 = tag;
    kvtrace_platform::store_part(slot, event, 2);
    event.address = subject.address;
    event.event_kind = static_cast<uint8_t>(subject.event_kind);
    event.access_size = static_cast<uint8_t>(subject.access_size);
    event.thread_index = static_cast<uint16_t>(subject.thread_index);
    event.sequence_low = static_cast<uint16_t>(sequence);
    event.tag3 = tag;
    kvtrace_platform::store_part(slot, event, 3);
    return true;
}

/* The calling thread's block enters a kernel. Each thread of the block calls; the leader's counts.
 * `userdata` is NULL for functions that are no target. */
KVTRACE_DEVICE void kvtrace_on_block_enter(const void *userdata, uint64_t pc) {
    if (userdata == nullptr || !kvtrace_platform::is_leader()) {
        return;
    }
    const kvtrace_callback_data *data = static_cast<const kvtrace_callback_data *>(userdata);
    if (kvtrace_platform::load_constant(&data->magic) == KVTRACE_CALLBACK_DATA_MAGIC) {
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
    if (kvtrace_platform::load_constant(&data->magic) != KVTRACE_CALLBACK_DATA_MAGIC ||
        kvtrace_platform::load_constant(&data->store_mode) < least_mode) {
        return;
    }
    kvtrace_event_subject subject = {pc, address, KVTRACE_EVENT_GLOBAL_STORE, access_size,
                                     kvtrace_platform::thread_index()};
    /* In registers it would have every thread save others in memory, that records or not. */
    kvtrace_platform::keep_in_memory(&subject);
    if (!kvtrace_record(data, subject)) {
        kvtrace_platform::increment_mapped(&kvtrace_control(data)->dropped_store_count);
    }
}

#endif
