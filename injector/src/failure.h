/* What went wrong: the first failure goes into every header, all of them into the journal. */
#ifndef KVTRACE_FAILURE_H
#define KVTRACE_FAILURE_H

#include <sanitizer.h>

#include "kvtrace_abi.h"

namespace kvtrace {

struct Failure {
    uint32_t site;
    uint32_t result;
};

void record_failure(kvtrace_failure_site site, uint32_t result, const char *detail);

/* The first failure of the process; site 0 if there was none. */
Failure first_failure();

/* Every Sanitizer result passes here. True on success. */
inline bool check(SanitizerResult result, kvtrace_failure_site site, const char *detail) {
    if (result == SANITIZER_SUCCESS) {
        return true;
    }
    record_failure(site, static_cast<uint32_t>(result), detail);
    return false;
}

} // namespace kvtrace

#endif
