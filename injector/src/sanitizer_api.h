/* The Sanitizer entry points we use, found at run time so that nothing is needed at link time. */
#ifndef KVTRACE_SANITIZER_API_H
#define KVTRACE_SANITIZER_API_H

#include <sanitizer.h>

namespace kvtrace {

struct SanitizerApi {
    decltype(&sanitizerSubscribe) subscribe = nullptr;
    decltype(&sanitizerEnableCallback) enable_callback = nullptr;
    decltype(&sanitizerAlloc) alloc = nullptr;
    decltype(&sanitizerAllocHost) alloc_host = nullptr;
    decltype(&sanitizerMemset) memset = nullptr;
    decltype(&sanitizerMemcpyHostToDeviceAsync) copy_to_device = nullptr;
    decltype(&sanitizerStreamSynchronize) stream_synchronize = nullptr;
    decltype(&sanitizerGetStreamHandle) get_stream_handle = nullptr;
    decltype(&sanitizerAddPatches) add_patches = nullptr;
    decltype(&sanitizerPatchInstructions) patch_instructions = nullptr;
    decltype(&sanitizerPatchModule) patch_module = nullptr;
    decltype(&sanitizerUnpatchModule) unpatch_module = nullptr;
    decltype(&sanitizerSetCallbackData) set_callback_data = nullptr;
    decltype(&sanitizerSetLaunchCallbackData) set_launch_callback_data = nullptr;
    decltype(&sanitizerGetFunctionPcAndSize) get_function_pc_and_size = nullptr;
    /* From the driver: a pure query, the only way to a name when a function is loaded. */
    CUresult (*function_name)(const char **, CUfunction) = nullptr;

    /*
     * Open the library and find every entry point. Returns false, with a text that says what was
     * not found, if any is missing. Nothing is ever closed again.
     */
    bool load(const char *library_path, char *error, size_t error_size);
};

} // namespace kvtrace

#endif
