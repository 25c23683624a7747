/* The CUPTI entry points we use, found at run time so that nothing is needed at link time. */
#ifndef KVTRACE_CUPTI_API_H
#define KVTRACE_CUPTI_API_H

#include <cupti.h>

namespace kvtrace {

struct CuptiApi {
    decltype(&cuptiGetVersion) get_version = nullptr;
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
    decltype(&cuptiActivityEnable) enable = nullptr;
    decltype(&cuptiActivityDisable) disable = nullptr;
    decltype(&cuptiActivityFlushPeriod) flush_period = nullptr;
    decltype(&cuptiActivityFlushAll) flush_all = nullptr;
    decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
    decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
    /* What cuptiGetVersion said. */
    uint32_t version = 0;

    /*
     * Open the library, find every entry point, and see that its records are those of the header
     * that we were compiled with. Returns false, with a text that says why not. Nothing is ever
     * closed again.
     */
    bool load(const char *library_path, char *error, size_t error_size);
};

} // namespace kvtrace

#endif
