#include "cupti_api.h"

#include <dlfcn.h>

#include <cstdio>

namespace kvtrace {
namespace {

/* 130001 is an update of CUDA 13.0: updates do not change records, minor releases do. */
constexpr uint32_t kUpdatesPerRelease = 100;

template <typename Function>
bool find(void *library, const char *name, Function *function, char *error, size_t error_size) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        std::snprintf(error, error_size, "symbol %s not found", name);
    }
    return *function != nullptr;
}

bool has_our_records(uint32_t version, char *error, size_t error_size) {
    if (version / kUpdatesPerRelease == CUPTI_API_VERSION / kUpdatesPerRelease) {
        return true;
    }
    std::snprintf(error, error_size,
                  "CUPTI version %u, whose records may differ from those of version %u that "
                  "libkvtrace_cupti.so was built for; name another with --cupti-library, or build "
                  "again with its headers",
                  version, static_cast<uint32_t>(CUPTI_API_VERSION));
    return false;
}

} // namespace

bool CuptiApi::load(const char *library_path, char *error, size_t error_size) {
    void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char *reason = dlerror();
        std::snprintf(error, error_size, "%s", reason != nullptr ? reason : library_path);
        return false;
    }
    const auto at = [&](const char *name, auto *function) {
        return find(library, name, function, error, error_size);
    };
    if (!at("cuptiGetVersion", &get_version) ||
        !at("cuptiActivityRegisterCallbacks", &register_callbacks) ||
        !at("cuptiActivityEnable", &enable) || !at("cuptiActivityDisable", &disable) ||
        !at("cuptiActivityFlushPeriod", &flush_period) ||
        !at("cuptiActivityFlushAll", &flush_all) ||
        !at("cuptiActivityGetNextRecord", &next_record) ||
        !at("cuptiActivityGetNumDroppedRecords", &dropped_records)) {
        return false;
    }
    const CUptiResult result = get_version(&version);
    if (result != CUPTI_SUCCESS) {
        std::snprintf(error, error_size, "cuptiGetVersion: result %d", static_cast<int>(result));
        return false;
    }
    return has_our_records(version, error, error_size);
}

} // namespace kvtrace
