/*
 * How the library gets in: the driver loads it for CUDA_INJECTION64_PATH and calls
 * InitializeInjection inside cuInit. A process that never calls cuInit sees no CUPTI, no file and
 * no thread.
 */
#include <cupti_version.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "kvtrace_activity.h"
#include "recorder.h"

namespace {

std::atomic<bool> was_called{false};

} // namespace

/* Called by the driver, at most once for each process; idempotent all the same. Always success: a
 * process that cannot be recorded must run as if we were not there. */
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    if (!was_called.exchange(true)) {
        /* Used at once, never kept: setproctitle overwrites what getenv points to. */
        const char *config_path = std::getenv("KVTRACE_CONFIG");
        if (config_path != nullptr && config_path[0] != '\0') {
            try {
                kvtrace::begin_recording(config_path);
            } catch (...) {
                std::fputs("kvtrace: not recording: an exception\n", stderr);
            }
        }
    }
    return 1;
}

/* Read from the file by the launcher, which must not load a library just to ask it. */
#define KVTRACE_TEXT(value) #value
#define KVTRACE_NUMBER_TEXT(value) KVTRACE_TEXT(value)
extern "C" __attribute__((visibility("default"), used)) const char kvtrace_build_stamp[] =
    "kvtrace-cupti abi=" KVTRACE_NUMBER_TEXT(KVTRACE_ABI_VERSION) " cupti=" KVTRACE_NUMBER_TEXT(
        CUPTI_API_VERSION);
