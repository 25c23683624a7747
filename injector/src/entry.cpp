/*
 * How the library gets in. The driver loads it for CUDA_INJECTION64_PATH and calls
 * InitializeInjection inside cuInit. Under LD_PRELOAD its constructor runs in every process, shells
 * and compilers too, so it does nothing but set that same variable: a process that never calls
 * cuInit sees no Sanitizer, no file and no thread.
 */
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "callbacks.h"
#include "config.h"
#include "failure.h"
#include "injector.h"

namespace {

constexpr const char *kInjectionVariable = "CUDA_INJECTION64_PATH";
constexpr const char *kConfigVariable = "KVTRACE_CONFIG";

std::atomic<bool> was_called{false};
bool set_by_constructor = false;

void say(const char *text, const char *detail) {
    std::fprintf(stderr, "kvtrace: not recording: %s: %s\n", text, detail);
}

void initialize(const char *config_path) {
    using kvtrace::Injector;
    Injector *self = new (std::nothrow) Injector;
    char error[KVTRACE_PATH_BYTES + 128];
    if (self == nullptr) {
        say("injector", "out of memory");
        return;
    }
    if (!kvtrace::read_config(config_path, &self->config, error, sizeof(error))) {
        say("config", error);
        return;
    }
    std::snprintf(self->loaded_by, sizeof(self->loaded_by), "%s",
                  set_by_constructor ? "LD_PRELOAD" : kInjectionVariable);
    if (!self->api.load(self->config.sanitizer_library, error, sizeof(error))) {
        say(self->config.sanitizer_library, error);
        return;
    }
    kvtrace::publish_injector(self);
    if (!kvtrace::subscribe(self)) {
        const kvtrace::Failure failure = kvtrace::first_failure();
        std::snprintf(error, sizeof(error), "site %u, result %u", failure.site, failure.result);
        say("the Sanitizer refused", error);
    }
}

} // namespace

/* Called by the driver, at most once for each process; idempotent all the same. Always success: a
 * process that cannot be recorded must run as if we were not there. */
extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    if (!was_called.exchange(true)) {
        /* Used at once, never kept: setproctitle overwrites what getenv points to. */
        const char *config_path = std::getenv(kConfigVariable);
        if (config_path != nullptr && config_path[0] != '\0') {
            initialize(config_path);
        }
    }
    return 1;
}

/* Read from the file by the launcher, which must not load a library just to ask it. */
#define KVTRACE_TEXT(value) #value
#define KVTRACE_NUMBER_TEXT(value) KVTRACE_TEXT(value)
extern "C" __attribute__((visibility("default"), used)) const char kvtrace_build_stamp[] =
    "kvtrace-injector abi=" KVTRACE_NUMBER_TEXT(KVTRACE_ABI_VERSION) " cuda=" KVTRACE_CUDA_RELEASE
                                                                     " sm=" KVTRACE_SM_LIST;

__attribute__((constructor)) static void on_load() {
    Dl_info self;
    if (std::getenv(kConfigVariable) != nullptr && std::getenv(kInjectionVariable) == nullptr &&
        dladdr(reinterpret_cast<void *>(&InitializeInjection), &self) != 0) {
        setenv(kInjectionVariable, self.dli_fname, 0);
        set_by_constructor = true;
    }
}
