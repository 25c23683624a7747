#include "contexts.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "config.h"
#include "drain.h"
#include "failure.h"
#include "process.h"

namespace kvtrace {
namespace {

constexpr size_t kCallbackDataCount = kMaxKernelSlots + KVTRACE_MAX_LAUNCH_STAMP + 1;

/* The memory of one context: two allocations, made once, freed by the driver with the context. */
struct ContextMemory {
    char *device;
    char *host;
};

size_t ring_bytes(const Injector &self) {
    return sizeof(kvtrace_block_event) * size_t{self.config.ring_events};
}

size_t host_bytes(const Injector &self) {
    return ring_bytes(self) + sizeof(kvtrace_ring_control) +
           sizeof(uint32_t) * size_t{self.config.ring_events};
}

bool allocate(Injector *self, CUcontext handle, ContextMemory *memory) {
    void *device = nullptr;
    void *host = nullptr;
    const size_t device_bytes = sizeof(kvtrace_callback_data) * kCallbackDataCount + 128;
    if (!check(self->api.alloc(handle, &device, device_bytes), KVTRACE_SITE_ALLOC_DEVICE,
               "callback data") ||
        !check(self->api.alloc_host(handle, &host, host_bytes(*self)), KVTRACE_SITE_ALLOC_HOST,
               "event ring")) {
        return false;
    }
    memory->device = static_cast<char *>(device);
    memory->host = static_cast<char *>(host);
    std::memset(memory->host, 0, host_bytes(*self));
    return true;
}

kvtrace_callback_data make_callback_data(const Injector &self, const ContextMemory &memory) {
    const auto address = [](const char *at) {
        return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(at));
    };
    kvtrace_callback_data data = {};
    data.magic = KVTRACE_CALLBACK_DATA_MAGIC;
    data.ring_address = address(memory.host);
    data.control_address = address(memory.host + ring_bytes(self));
    data.drop_hints_address = data.control_address + sizeof(kvtrace_ring_control);
    data.counters_address = address(memory.device) + sizeof(data) * kCallbackDataCount;
    data.capacity_log2 = static_cast<uint32_t>(__builtin_ctz(self.config.ring_events));
    data.one_shot = self.has_flag(KVTRACE_CONFIG_ONE_SHOT) ? 1 : 0;
    data.store_mode = store_mode(self.config);
    return data;
}

/* Fill the device side: a record for each kernel slot and each stamp, constant from here on, and
 * zeroed counters. Waits for the copies, once, before the context has run anything. */
bool fill_device(Injector *self, CUcontext handle, const ContextMemory &memory) {
    kvtrace_callback_data *records = new (std::nothrow) kvtrace_callback_data[kCallbackDataCount];
    if (records == nullptr) {
        record_failure(KVTRACE_SITE_ALLOC_HOST, ENOMEM, "callback data");
        return false;
    }
    for (uint32_t i = 0; i < kCallbackDataCount; ++i) {
        records[i] = make_callback_data(*self, memory);
        records[i].kernel_slot = i < kMaxKernelSlots ? i : KVTRACE_KERNEL_SLOT_FROM_PC;
        records[i].launch_stamp = i < kMaxKernelSlots ? 0 : i - kMaxKernelSlots;
    }
    records[kMaxKernelSlots].magic = 0; /* Context::for_nothing */
    const size_t bytes = sizeof(kvtrace_callback_data) * kCallbackDataCount;
    Sanitizer_StreamHandle stream = nullptr;
    const bool filled =
        check(self->api.get_stream_handle(handle, nullptr, &stream), KVTRACE_SITE_COPY_TO_DEVICE,
              "default stream") &&
        check(self->api.memset(memory.device + bytes, 0, 128, stream), KVTRACE_SITE_COPY_TO_DEVICE,
              "counters") &&
        check(self->api.copy_to_device(memory.device, records, bytes, stream),
              KVTRACE_SITE_COPY_TO_DEVICE, "callback data") &&
        check(self->api.stream_synchronize(stream), KVTRACE_SITE_SYNCHRONIZE, "callback data");
    delete[] records;
    return filled;
}

uint32_t store_flags(const Injector &self) {
    switch (store_mode(self.config)) {
    case KVTRACE_STORES_ALL:
        return KVTRACE_FILE_WRITES | KVTRACE_FILE_ALL_WRITES;
    case KVTRACE_STORES_LEADER:
        return KVTRACE_FILE_WRITES;
    default:
        return 0;
    }
}

bool create_event_file(Injector *self, Context *context) {
    char suffix[32];
    char path[KVTRACE_PATH_BYTES + 64];
    std::snprintf(suffix, sizeof(suffix), "-%u.events.kvt", context->index);
    raw_file_path(*self, path, sizeof(path), suffix);
    kvtrace_file_header header = make_file_header(*self);
    header.magic = KVTRACE_EVENTS_MAGIC;
    header.record_size = sizeof(kvtrace_block_event);
    header.capacity = self->config.ring_events;
    header.context_index = context->index;
    header.flags |= store_flags(*self);
    if (!context->file.create(path, header)) {
        record_failure(KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), path);
        return false;
    }
    return true;
}

bool prepare(Injector *self, Context *context) {
    ContextMemory memory = {};
    if (!create_event_file(self, context) || !allocate(self, context->handle, &memory) ||
        !fill_device(self, context->handle, memory)) {
        return false;
    }
    const kvtrace_callback_data data = make_callback_data(*self, memory);
    context->callback_data = reinterpret_cast<kvtrace_callback_data *>(memory.device);
    context->ring.attach(reinterpret_cast<kvtrace_block_event *>(data.ring_address),
                         reinterpret_cast<kvtrace_ring_control *>(data.control_address),
                         reinterpret_cast<uint32_t *>(data.drop_hints_address),
                         self->config.ring_events, data.one_shot != 0);
    return true;
}

/* Take the next place for a new handle; NULL if it is known already or there is none. */
Context *take_place(Injector *self, CUcontext handle) {
    const std::lock_guard<std::mutex> lock(self->setup_mutex);
    const uint32_t count = self->context_count.load(std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) {
        if (self->contexts[i].handle == handle &&
            self->contexts[i].state.load() != Context::State::kDestroyed) {
            return nullptr;
        }
    }
    if (count == kMaxContexts) {
        record_failure(KVTRACE_SITE_TABLE_FULL, kMaxContexts, "contexts");
        return nullptr;
    }
    Context *context = &self->contexts[count];
    context->handle = handle;
    context->index = count;
    context->state.store(Context::State::kPreparing);
    self->context_count.store(count + 1, std::memory_order_release);
    return context;
}

} // namespace

Context *find_context(Injector *self, CUcontext handle) {
    const uint32_t count = self->context_count.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < count; ++i) {
        Context *context = &self->contexts[i];
        if (context->state.load(std::memory_order_acquire) == Context::State::kReady &&
            context->handle == handle) {
            return context;
        }
    }
    return nullptr;
}

Context *prepare_context(Injector *self, CUcontext handle) {
    if (Context *known = find_context(self, handle)) {
        return known;
    }
    if (has_ended(*self) || !set_up_process(self)) {
        return nullptr;
    }
    Context *context = take_place(self, handle);
    if (context == nullptr) {
        return nullptr;
    }
    const bool is_ready = prepare(self, context);
    context->state.store(is_ready ? Context::State::kReady : Context::State::kFailed,
                         std::memory_order_release);
    JournalLine line("context_created");
    line.add("context_index", static_cast<uint64_t>(context->index)).add("recorded", is_ready);
    self->journal.write(line);
    return is_ready ? context : nullptr;
}

void destroy_context(Injector *self, CUcontext handle) {
    if (Context *context = find_context(self, handle)) {
        close_context(self, context);
    }
}

} // namespace kvtrace
