/*
 * The device callbacks, built as a Sanitizer tools patch: at most 24 registers, no shared memory.
 */
#include "platform_cuda.h"

#include "block_event.h"

#include <sanitizer_patching.h>

/*
 * Called by every thread of every block of a patched module before any user code. `userdata` is
 * NULL for functions that are no target. Always success: anything else would end the warp.
 */
extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_block_enter(void *userdata,
                                                                            uint64_t pc) {
    if (userdata != nullptr && kvtrace_platform::is_leader()) {
        kvtrace_record_block_enter(static_cast<const kvtrace_callback_data *>(userdata), pc);
    }
    return SANITIZER_PATCH_SUCCESS;
}
