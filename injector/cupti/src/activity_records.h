/* CUPTI's activity records -> ours. */
#ifndef KVTRACE_ACTIVITY_RECORDS_H
#define KVTRACE_ACTIVITY_RECORDS_H

#include <cupti.h>

#include "kvtrace_activity.h"

namespace kvtrace {

/* The kinds that are recorded; copies between two devices are a kind of their own. */
constexpr CUpti_ActivityKind kRecordedKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
};

/*
 * Fill `record` from one of CUPTI's. False: it is of a kind that we do not record.
 * `name` is set to a kernel's mangled name, which is CUPTI's, or to NULL; name_id is left to the
 * caller.
 */
bool convert(const CUpti_Activity *activity, kvtrace_activity_record *record, const char **name);

} // namespace kvtrace

#endif
