/*
 * What the device callback does, free of any platform: the includer supplies namespace
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

/* Record that the calling thread's block entered the kernel. Call in one thread of the block. */
KVTRACE_DEVICE void kvtrace_record_block_enter(const kvtrace_callback_data *data, uint64_t pc) {
    if (data->magic != KVTRACE_CALLBACK_DATA_MAGIC) {
        return;
    }
    kvtrace_block_event event;
    event.gpu_globaltimer_ns = kvtrace_platform::globaltimer_ns();
    uint64_t sequence;
    if (!kvtrace_reserve(data, &sequence)) {
        return;
    }
    const uint16_t tag = static_cast<uint16_t>((sequence >> data->capacity_log2) + 1);
    const uint64_t mask = (uint64_t{1} << data->capacity_log2) - 1;
    event.block_idx_x = kvtrace_platform::block_idx_x();
    event.block_idx_y = static_cast<uint16_t>(kvtrace_platform::block_idx_y());
    event.tag0 = tag;
    event.pc = pc;
    event.launch_stamp = data->launch_stamp;
    event.block_idx_z = static_cast<uint16_t>(kvtrace_platform::block_idx_z());
    event.tag1 = tag;
    event.grid_id = kvtrace_platform::grid_id();
    event.kernel_slot = data->kernel_slot;
    event.sm_id = static_cast<uint16_t>(kvtrace_platform::sm_id());
    event.tag2 = tag;
    event.address = 0;
    event.event_kind = KVTRACE_EVENT_BLOCK_ENTER;
    event.access_size = 0;
    event.thread_index = 0;
    event.sequence_low = static_cast<uint16_t>(sequence);
    event.tag3 = tag;
    kvtrace_platform::store_event(
        reinterpret_cast<kvtrace_block_event *>(data->ring_address) + (sequence & mask), event);
}

#endif
