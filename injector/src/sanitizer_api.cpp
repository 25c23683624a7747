#include "sanitizer_api.h"

#include <dlfcn.h>

#include <cstdio>

namespace kvtrace {
namespace {

template <typename Function>
bool find(void *library, const char *name, Function *function, char *error, size_t error_size) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        std::snprintf(error, error_size, "symbol %s not found", name);
    }
    return *function != nullptr;
}

} // namespace

bool SanitizerApi::load(const char *library_path, char *error, size_t error_size) {
    void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char *reason = dlerror();
        std::snprintf(error, error_size, "%s", reason != nullptr ? reason : library_path);
        return false;
    }
    /* The driver is already there: it is what loaded us. The emulator has both in one library. */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) {
        driver = library;
    }
    const auto at = [&](const char *name, auto *function) {
        return find(library, name, function, error, error_size);
    };
    return at("sanitizerSubscribe", &subscribe) &&
           at("sanitizerEnableCallback", &enable_callback) && at("sanitizerAlloc", &alloc) &&
           at("sanitizerAllocHost", &alloc_host) && at("sanitizerMemset", &memset) &&
           at("sanitizerMemcpyHostToDeviceAsync", &copy_to_device) &&
           at("sanitizerStreamSynchronize", &stream_synchronize) &&
           at("sanitizerGetStreamHandle", &get_stream_handle) &&
           at("sanitizerAddPatches", &add_patches) &&
           at("sanitizerPatchInstructions", &patch_instructions) &&
           at("sanitizerPatchModule", &patch_module) &&
           at("sanitizerUnpatchModule", &unpatch_module) &&
           at("sanitizerSetCallbackData", &set_callback_data) &&
           at("sanitizerSetLaunchCallbackData", &set_launch_callback_data) &&
           at("sanitizerGetFunctionPcAndSize", &get_function_pc_and_size) &&
           find(driver, "cuFuncGetName", &function_name, error, error_size);
}

} // namespace kvtrace
