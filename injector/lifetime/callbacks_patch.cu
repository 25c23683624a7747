/* The device callbacks of the lifetime matrix as a Sanitizer tools patch, built as the injector's.
 */
#include "../device/platform_cuda.h"

#include "../device/block_event.h"

#include "callbacks.h"

#include <sanitizer_patching.h>

extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_lifetime_no_op(void *, uint64_t) {
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult
kvtrace_lifetime_pointer_read(void *userdata, uint64_t pc) {
    kvtrace_lifetime_read_pointer(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_lifetime_counter(void *userdata,
                                                                                 uint64_t) {
    kvtrace_lifetime_add_one(userdata);
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_lifetime_full_event(void *userdata,
                                                                                    uint64_t pc) {
    kvtrace_on_block_enter(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}
