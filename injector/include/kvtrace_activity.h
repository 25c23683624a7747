/* The activity records for C and C++. See kvtrace_activity_decl.h. */
#ifndef KVTRACE_ACTIVITY_H
#define KVTRACE_ACTIVITY_H

#include "kvtrace_abi.h"

#include "kvtrace_activity_decl.h"

KVTRACE_STATIC_ASSERT(sizeof(kvtrace_activity_record) == 80, "activity record");
KVTRACE_STATIC_ASSERT(sizeof(kvtrace_activity_config) == 32 + 2 * KVTRACE_PATH_BYTES,
                      "activity config");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_activity_record, correlation_id) == 40, "activity words");
KVTRACE_STATIC_ASSERT(offsetof(kvtrace_activity_record, activity_kind) == 78, "activity bytes");

#endif
