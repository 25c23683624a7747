/*
 * Stands in for libcupti: the entry points that the observer uses, and fake_cupti_* to play
 * activities with. As in the real one, buffers are asked for and given back on any thread.
 *
 * KVTRACE_FAKE_CUPTI_VERSION: what cuptiGetVersion says. KVTRACE_FAKE_CUPTI_REFUSES: not empty:
 * cuptiActivityEnable fails, as without the privilege to profile.
 */
#include "fake_cupti.h"

#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

#if CUPTI_API_VERSION < 130400
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
using MemsetRecord = CUpti_ActivityMemset4;
#else
using KernelRecord = CUpti_ActivityKernel13;
using CopyRecord = CUpti_ActivityMemcpy7;
using MemsetRecord = CUpti_ActivityMemset5;
#endif

constexpr uint32_t kContext = 1;

std::mutex mutex;
CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
uint32_t enabled_kinds = 0;
uint8_t *buffer = nullptr;
size_t buffer_size = 0;
size_t used = 0;
size_t dropped = 0;

size_t size_of(CUpti_ActivityKind kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(CopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
        return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(MemsetRecord);
    default:
        return 0;
    }
}

void give_back() {
    if (buffer != nullptr) {
        complete(nullptr, 0, buffer, buffer_size, used);
        buffer = nullptr;
    }
}

void play(const void *record, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (buffer != nullptr && used + size > buffer_size) {
        give_back();
    }
    if (buffer == nullptr) {
        size_t most = 0;
        used = 0;
        request(&buffer, &buffer_size, &most);
    }
    if (buffer == nullptr) {
        ++dropped;
        return;
    }
    std::memcpy(buffer + used, record, size);
    used += size;
}

template <typename Record> Record filled(CUpti_ActivityKind kind, const FakeActivity &from) {
    Record record;
    std::memset(&record, 0, sizeof(record));
    record.kind = kind;
    record.start = from.begin_ns;
    record.end = from.end_ns;
    record.graphNodeId = from.graph_node_id;
    record.graphId = from.graph_id;
    record.correlationId = from.correlation_id;
    record.streamId = from.stream_id;
    record.contextId = kContext;
    return record;
}

template <typename Record> void play_if_enabled(const Record &record) {
    if ((enabled_kinds & (1u << record.kind)) != 0) {
        play(&record, sizeof(record));
    }
}

bool is_set(const char *name) {
    const char *value = std::getenv(name);
    return value != nullptr && value[0] != '\0';
}

} // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t *version) {
    const char *name = "KVTRACE_FAKE_CUPTI_VERSION";
    *version = is_set(name) ? static_cast<uint32_t>(std::atoi(std::getenv(name)))
                            : static_cast<uint32_t>(CUPTI_API_VERSION);
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                                    CUpti_BuffersCallbackCompleteFunc completed) {
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
    if (is_set("KVTRACE_FAKE_CUPTI_REFUSES")) {
        return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    }
    enabled_kinds |= 1u << kind;
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
    enabled_kinds &= ~(1u << kind);
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushPeriod(uint32_t) { return CUPTI_SUCCESS; }

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) {
    const std::lock_guard<std::mutex> lock(mutex);
    give_back();
    return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t *from, size_t valid_bytes,
                                                CUpti_Activity **record) {
    uint8_t *next = from;
    if (*record != nullptr) {
        next = reinterpret_cast<uint8_t *>(*record) + size_of((*record)->kind);
    }
    if (next >= from + valid_bytes) {
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    }
    *record = reinterpret_cast<CUpti_Activity *>(next);
    return size_of((*record)->kind) == 0 ? CUPTI_ERROR_INVALID_KIND : CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *count) {
    const std::lock_guard<std::mutex> lock(mutex);
    *count = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}

void fake_cupti_kernel(const FakeActivity *activity, const char *name, int32_t grid_x) {
    auto record = filled<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, *activity);
    record.name = name;
    record.gridX = grid_x;
    record.gridY = 2;
    record.gridZ = 1;
    record.blockX = 128;
    record.blockY = 1;
    record.blockZ = 1;
    record.gridId = 7;
    play_if_enabled(record);
}

void fake_cupti_copy(const FakeActivity *activity, uint64_t byte_count, uint8_t copy_kind) {
    auto record = filled<CopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY, *activity);
    record.bytes = byte_count;
    record.copyKind = copy_kind;
    play_if_enabled(record);
}

void fake_cupti_peer_copy(const FakeActivity *activity, uint64_t byte_count) {
    auto record = filled<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2, *activity);
    record.bytes = byte_count;
    record.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
    play_if_enabled(record);
}

void fake_cupti_memset(const FakeActivity *activity, uint64_t byte_count) {
    auto record = filled<MemsetRecord>(CUPTI_ACTIVITY_KIND_MEMSET, *activity);
    record.bytes = byte_count;
    play_if_enabled(record);
}

void fake_cupti_unfinished(void) {
    auto record = filled<KernelRecord>(CUPTI_ACTIVITY_KIND_INVALID, {});
    play(&record, sizeof(record));
}
}
