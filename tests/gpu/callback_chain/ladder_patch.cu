/*
 * A ladder of device callbacks, each doing a little more than the one before, up to the injector's
 * own: what a block entry costs, part by part. kvtrace_callback_data is what all of them are given.
 */
#include "../../../injector/device/platform_cuda.h"

#include "../../../injector/device/block_event.h"

#include "ladder.h"

#include <sanitizer_patching.h>

#define LADDER_STEP(name)                                                                          \
    extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_ladder_##name(void *userdata,  \
                                                                                  uint64_t pc)

namespace {

/* Where the place of an event comes from. */
enum class Place {
    /* The grid id alone. */
    kGrid,
    /* What the host may reserve for a launch, and the block's number in its grid. */
    kLaunch,
    /* One atomic for each event, and nothing is asked about space. */
    kAtomic,
    kAtomicThenCache,
    kCacheThenAtomic,
    /* The same, of counters that are found without reading the data: nothing has to come before. */
    kEarly
};

/* How an event is stored. */
enum class Store { kVolatile, kWeak, kStreaming, kWriteThrough, kFenced };

KVTRACE_DEVICE bool is_wanted(const void *userdata) {
    return userdata != nullptr && kvtrace_platform::is_leader() &&
           kvtrace_platform::load_constant(
               &static_cast<const kvtrace_callback_data *>(userdata)->magic) ==
               KVTRACE_CALLBACK_DATA_MAGIC;
}

/* Not NULL and the first thread: what can be said before anything is read. */
KVTRACE_DEVICE bool may_be_wanted(const void *userdata) {
    return userdata != nullptr && kvtrace_platform::is_leader();
}

KVTRACE_DEVICE uint32_t block_number() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

/* False if there is no space, which in a ladder there always is. */
template <Place kPlace>
KVTRACE_DEVICE bool find_place(const kvtrace_callback_data *data, uint32_t capacity_log2,
                               uint64_t *sequence) {
    if (kPlace == Place::kGrid) {
        *sequence = kvtrace_platform::grid_id();
        return true;
    }
    if (kPlace == Place::kLaunch) {
        /* Any constant of a launch will do for the base: these read as much. */
        *sequence = kvtrace_platform::load_constant(&data->drop_hints_address) +
                    kvtrace_platform::grid_id() + block_number();
        return true;
    }
    kvtrace_device_counters *counters =
        kPlace == Place::kEarly
            ? reinterpret_cast<kvtrace_device_counters *>(reinterpret_cast<uint64_t>(data) -
                                                          KVTRACE_LADDER_COUNTERS_BEFORE_DATA)
            : kvtrace_counters(data);
    uint64_t drained = 0;
    if (kPlace == Place::kCacheThenAtomic || kPlace == Place::kEarly) {
        drained = kvtrace_platform::load(&counters->drained_cache);
    }
    *sequence = kvtrace_platform::atomic_increment(&counters->reserved_count);
    if (kPlace == Place::kAtomicThenCache) {
        drained = kvtrace_platform::load(&counters->drained_cache);
    }
    return kPlace == Place::kAtomic || (*sequence - drained) >> capacity_log2 == 0;
}

template <Store kStore>
KVTRACE_DEVICE void store(char *slot, const kvtrace_block_event &event, int part) {
    uint32_t words[4];
    memcpy(words, reinterpret_cast<const char *>(&event) + 16 * part, sizeof(words));
#define LADDER_STORE(operation)                                                                    \
    asm volatile(operation " [%0], {%1, %2, %3, %4};"                                              \
                 :                                                                                 \
                 : "l"(slot), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])           \
                 : "memory")
    if (kStore == Store::kWeak) {
        LADDER_STORE("st.global.v4.u32");
    } else if (kStore == Store::kStreaming) {
        LADDER_STORE("st.global.cs.v4.u32");
    } else if (kStore == Store::kWriteThrough) {
        LADDER_STORE("st.global.wt.v4.u32");
    } else {
        LADDER_STORE("st.volatile.global.v4.u32");
    }
}

/* As the injector's: all four parts of an event, or two of them, with room for no more. */
template <Place kPlace, Store kStore, int kParts, bool kReadsMark = true>
KVTRACE_DEVICE void record(const void *userdata, uint64_t pc) {
    if (kReadsMark ? !is_wanted(userdata) : !may_be_wanted(userdata)) {
        return;
    }
    const kvtrace_callback_data *data = static_cast<const kvtrace_callback_data *>(userdata);
    kvtrace_block_event event;
    event.gpu_globaltimer_ns = kvtrace_platform::globaltimer_ns();
    const uint32_t capacity_log2 = kvtrace_platform::load_constant(&data->capacity_log2);
    uint64_t sequence;
    if (!find_place<kPlace>(data, capacity_log2, &sequence)) {
        return;
    }
    const uint32_t place = static_cast<uint32_t>(sequence) & ((1u << capacity_log2) - 1);
    char *slot = reinterpret_cast<char *>(kvtrace_platform::load_constant(&data->ring_address)) +
                 uint64_t{place} * (16 * kParts);
    const uint16_t tag = static_cast<uint16_t>((sequence >> capacity_log2) + 1);
    event.block_idx_x = kvtrace_platform::block_idx_x();
    event.block_idx_y = static_cast<uint16_t>(kvtrace_platform::block_idx_y());
    event.tag0 = tag;
    store<kStore>(slot, event, 0);
    if (kParts == 4) {
        event.pc = pc;
        event.launch_stamp = kvtrace_platform::load_constant(&data->launch_stamp);
        event.block_idx_z = static_cast<uint16_t>(kvtrace_platform::block_idx_z());
        event.tag1 = tag;
        store<kStore>(slot + 16, event, 1);
    }
    event.grid_id = kvtrace_platform::grid_id();
    event.kernel_slot = kvtrace_platform::load_constant(&data->kernel_slot);
    event.sm_id = static_cast<uint16_t>(kvtrace_platform::sm_id());
    event.tag2 = tag;
    store<kStore>(slot + (kParts == 4 ? 32 : 16), event, 2);
    if (kStore == Store::kFenced) {
        __threadfence_system();
    }
    if (kParts == 4) {
        event.address = 0;
        event.event_kind = KVTRACE_EVENT_BLOCK_ENTER;
        event.access_size = 0;
        event.thread_index = 0;
        event.sequence_low = static_cast<uint16_t>(sequence);
        event.tag3 = tag;
        store<kStore>(slot + 48, event, 3);
    }
}

/* As the injector's callback was before it was made thinner: addresses of any space, all fields
 * read when they are needed, space looked for after the reservation, two flags of the ring. */
KVTRACE_DEVICE void record_as_before(const void *userdata, uint64_t pc) {
    if (userdata == nullptr || !kvtrace_platform::is_leader()) {
        return;
    }
    const kvtrace_callback_data *data = static_cast<const kvtrace_callback_data *>(userdata);
    if (data->magic != KVTRACE_CALLBACK_DATA_MAGIC) {
        return;
    }
    kvtrace_block_event event;
    event.gpu_globaltimer_ns = kvtrace_platform::globaltimer_ns();
    kvtrace_device_counters *counters =
        reinterpret_cast<kvtrace_device_counters *>(data->counters_address);
    const uint64_t capacity = uint64_t{1} << data->capacity_log2;
    const uint64_t sequence =
        atomicAdd(reinterpret_cast<unsigned long long *>(&counters->reserved_count), 1ULL);
    const volatile uint64_t *drained = &counters->drained_cache;
    if (data->one_shot != 0 ? sequence >= capacity : sequence - *drained >= capacity) {
        return;
    }
    const uint16_t tag = static_cast<uint16_t>((sequence >> data->capacity_log2) + 1);
    event.block_idx_x = blockIdx.x;
    event.block_idx_y = static_cast<uint16_t>(blockIdx.y);
    event.tag0 = tag;
    event.pc = pc;
    event.launch_stamp = data->launch_stamp;
    event.block_idx_z = static_cast<uint16_t>(blockIdx.z);
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
    uint64_t words[8];
    memcpy(words, &event, sizeof(words));
    char *slot = reinterpret_cast<char *>(data->ring_address) + 64 * (sequence & (capacity - 1));
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};"
                     :
                     : "l"(slot + 16 * part), "l"(words[2 * part]), "l"(words[2 * part + 1])
                     : "memory");
    }
}

} // namespace

LADDER_STEP(no_op) { return SANITIZER_PATCH_SUCCESS; }

LADDER_STEP(leader) {
    if (is_wanted(userdata) && pc == 0) {
        kvtrace_platform::increment_mapped(
            &kvtrace_control(static_cast<const kvtrace_callback_data *>(userdata))->dropped_count);
    }
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(timer) {
    if (is_wanted(userdata) && kvtrace_platform::globaltimer_ns() == pc) {
        kvtrace_platform::increment_mapped(
            &kvtrace_control(static_cast<const kvtrace_callback_data *>(userdata))->dropped_count);
    }
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(stores) {
    record<Place::kGrid, Store::kVolatile, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(launch_base) {
    record<Place::kLaunch, Store::kVolatile, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(atomic) {
    record<Place::kAtomic, Store::kVolatile, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(cache_after) {
    record<Place::kAtomicThenCache, Store::kVolatile, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(cache_first) {
    record<Place::kCacheThenAtomic, Store::kVolatile, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(no_mark) {
    record<Place::kCacheThenAtomic, Store::kVolatile, 4, false>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(early_atomic) {
    record<Place::kEarly, Store::kVolatile, 4, false>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(half_event) {
    record<Place::kCacheThenAtomic, Store::kVolatile, 2>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(weak) {
    record<Place::kCacheThenAtomic, Store::kWeak, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(streaming) {
    record<Place::kCacheThenAtomic, Store::kStreaming, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(write_through) {
    record<Place::kCacheThenAtomic, Store::kWriteThrough, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(fenced) {
    record<Place::kCacheThenAtomic, Store::kFenced, 4>(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(before) {
    record_as_before(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

LADDER_STEP(injector) {
    kvtrace_on_block_enter(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}
