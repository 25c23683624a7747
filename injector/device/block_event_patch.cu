/*
 * The device callbacks, built as a Sanitizer tools patch: at most 24 registers, no shared memory.
 *
 * Always success: anything else would end the warp.
 *
 * Every thread of every block calls, so what counts first is what a thread runs that is not its
 * block's first one. A callback that needs more than the 14 registers that are its own saves the
 * others in local memory as it begins, for every thread: scripts/count_device_instructions.py
 * tells. -maxrregcount says what is the limit anyway, and has the compiler care.
 */
#include "platform_cuda.h"

#include "block_event.h"

#include <sanitizer_patching.h>

/*
 * Called by every thread of every block of a patched module before any user code.
 */
extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_block_enter(void *userdata,
                                                                            uint64_t pc) {
    kvtrace_on_block_enter(userdata, pc);
    return SANITIZER_PATCH_SUCCESS;
}

/*
 * In the place of the one above where only the cost of being called is measured.
 */
extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_block_enter_no_op(void *,
                                                                                  uint64_t) {
    return SANITIZER_PATCH_SUCCESS;
}

/*
 * Called by every thread before each access to global memory, if stores are recorded. Atomics count
 * as stores: they write.
 *
 * Not seen: bulk (TMA) copies from shared to global memory, for which the Sanitizer has a callback
 * of another kind and none at all for the tensor form. No kernel that writes vLLM's cache uses
 * them. ASYNC_STORE and MATRIX_MEMORY_ACCESS reach shared memory only.
 */
extern "C" __device__ __noinline__ SanitizerPatchResult kvtrace_store(void *userdata, uint64_t pc,
                                                                      void *address,
                                                                      uint32_t access_size,
                                                                      uint32_t flags,
                                                                      const void *) {
    if ((flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE) != 0) {
        kvtrace_on_store(userdata, pc, reinterpret_cast<uint64_t>(address), access_size);
    }
    return SANITIZER_PATCH_SUCCESS;
}
