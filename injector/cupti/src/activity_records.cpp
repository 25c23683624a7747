#include "activity_records.h"

namespace kvtrace {
namespace {

/* What the header's own library hands out; cupti_api.cpp refuses a library of another release. */
#if CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 130100
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using MemsetRecord = CUpti_ActivityMemset4;
#elif CUPTI_API_VERSION >= 130400 && CUPTI_API_VERSION < 130500
using KernelRecord = CUpti_ActivityKernel13;
using CopyRecord = CUpti_ActivityMemcpy7;
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using MemsetRecord = CUpti_ActivityMemset5;
#else
#error                                                                                             \
    "the activity records of this CUPTI are not known here: build with the headers of 13.0 or 13.4"
#endif

/* What records of all kinds have under the same names. */
template <typename Activity>
void convert_common(const Activity &from, kvtrace_activity_record *to) {
    to->gpu_cupti_begin_ns = from.start;
    to->gpu_cupti_end_ns = from.end;
    to->graph_node_id = from.graphNodeId;
    to->correlation_id = from.correlationId;
    to->graph_id = from.graphId;
    to->stream_id = from.streamId;
    to->context_id = from.contextId;
    to->device_ordinal = from.deviceId;
}

void convert_kernel(const KernelRecord &from, kvtrace_activity_record *to) {
    convert_common(from, to);
    to->activity_kind = KVTRACE_ACTIVITY_KERNEL;
    to->grid_id = static_cast<uint64_t>(from.gridId);
    to->grid_dim_x = static_cast<uint32_t>(from.gridX);
    to->grid_dim_y = static_cast<uint16_t>(from.gridY);
    to->grid_dim_z = static_cast<uint16_t>(from.gridZ);
    to->block_dim_x = static_cast<uint16_t>(from.blockX);
    to->block_dim_y = static_cast<uint16_t>(from.blockY);
    to->block_dim_z = static_cast<uint16_t>(from.blockZ);
}

template <typename Activity>
void convert_bytes(const Activity &from, kvtrace_activity_kind kind, uint8_t copy_kind,
                   kvtrace_activity_record *to) {
    convert_common(from, to);
    to->activity_kind = static_cast<uint8_t>(kind);
    to->byte_count = from.bytes;
    to->copy_kind = copy_kind;
}

} // namespace

bool convert(const CUpti_Activity *activity, kvtrace_activity_record *record, const char **name) {
    *record = {};
    *name = nullptr;
    const void *whole = activity;
    switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const KernelRecord &kernel = *static_cast<const KernelRecord *>(whole);
        convert_kernel(kernel, record);
        *name = kernel.name != nullptr ? kernel.name : "";
        return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CopyRecord &copy = *static_cast<const CopyRecord *>(whole);
        convert_bytes(copy, KVTRACE_ACTIVITY_COPY, copy.copyKind, record);
        return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const PeerCopyRecord &copy = *static_cast<const PeerCopyRecord *>(whole);
        convert_bytes(copy, KVTRACE_ACTIVITY_COPY, copy.copyKind, record);
        return true;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
        convert_bytes(*static_cast<const MemsetRecord *>(whole), KVTRACE_ACTIVITY_MEMSET, 0,
                      record);
        return true;
    default:
        return false;
    }
}

} // namespace kvtrace
