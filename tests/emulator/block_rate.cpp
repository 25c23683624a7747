/* tests/gpu/block_rate.cu on the emulator; see block_rate.h there. */
#include "../gpu/block_rate.h"

#include <cstdint>

extern "C" {
#include "kvtrace_emulator_decl.h"
}

int main() {
    kvtrace_emu_init();
    kvtrace_emu_context *context = kvtrace_emu_context_create(0);
    const char *names[] = {"probe_target"};
    kvtrace_emu_module *module = kvtrace_emu_module_load(context, names, 1, 1);
    kvtrace_emu_function *target = kvtrace_emu_get_function(module, names[0]);
    kvtrace_emu_stream *stream = kvtrace_emu_stream_create(context);
    return kvtrace_block_rate::serve(
        [=](unsigned blocks) { kvtrace_emu_launch(stream, target, {blocks, 1, 1}, {64, 1, 1}, 0); },
        [=] { kvtrace_emu_stream_synchronize(stream); });
}
