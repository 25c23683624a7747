/* The workload on the emulator. */
#include "program.h"

#include "subscriber.h"

extern "C" {
#include "kvtrace_emulator_decl.h"
}

namespace kvtrace_lifetime {
namespace {

constexpr kvtrace_emu_dim kThreads = {64, 1, 1};

struct Work {
    kvtrace_emu_stream *stream = nullptr;
    kvtrace_emu_function *target = nullptr;
    kvtrace_emu_function *neighbour = nullptr;
};

void launch(const Work &work, kvtrace_emu_function *function, uint32_t blocks = 1) {
    kvtrace_emu_launch(work.stream, function, {blocks, 1, 1}, kThreads, 0);
}

/* The neighbour is loaded after a first launch, if there is one. */
Work load(const Cell &cell, kvtrace_emu_context *context) {
    Work work;
    const char *own[] = {KVTRACE_LIFETIME_TARGET, "kvtrace_lifetime_neighbour"};
    const char *other[] = {"kvtrace_lifetime_other"};
    kvtrace_emu_module *module = kvtrace_emu_module_load(context, own, 2, 1);
    work.stream = kvtrace_emu_stream_create(context);
    work.target = kvtrace_emu_get_function(module, own[0]);
    if (cell.first_blocks != 0) {
        launch(work, work.target, cell.first_blocks);
        kvtrace_emu_stream_synchronize(work.stream);
    }
    work.neighbour =
        cell.same_module
            ? kvtrace_emu_get_function(module, own[1])
            : kvtrace_emu_get_function(kvtrace_emu_module_load(context, other, 1, 1), other[0]);
    if (cell.first_blocks != 0) {
        launch(work, work.neighbour);
    }
    return work;
}

kvtrace_emu_exec *capture(const Cell &cell, const Work &work, kvtrace_emu_context *context) {
    kvtrace_emu_begin_capture(work.stream);
    for (uint32_t i = 0; i < kNodes; ++i) {
        launch(work, work.target);
        if (cell.has_memset_nodes) {
            kvtrace_emu_memset(work.stream);
        }
        launch(work, work.neighbour);
    }
    return kvtrace_emu_instantiate(context, kvtrace_emu_end_capture(work.stream));
}

/* As the CUDA runtime names it. */
std::string name_of(int error) {
    return error == KVTRACE_EMULATOR_MISALIGNED_ADDRESS ? "cudaErrorMisalignedAddress"
                                                        : "error " + std::to_string(error);
}

} // namespace

bool map_region(void *, uint64_t, std::string *) {
    kvtrace_emu_init();
    return true;
}

uint32_t run(const Cell &cell, void (*before_replay)(uint32_t), std::string *error) {
    kvtrace_emu_context *context = kvtrace_emu_context_create(0);
    const Work work = load(cell, context);
    if (cell.starts_plain) {
        launch(work, work.target);
        launch(work, work.neighbour);
    }
    kvtrace_emu_exec *exec = capture(cell, work, context);
    for (uint32_t replay = 0; replay < kReplays; ++replay) {
        before_replay(replay);
        kvtrace_emu_graph_launch(exec, work.stream);
        if (const int result = kvtrace_emu_stream_synchronize(work.stream)) {
            *error = name_of(result);
            return replay;
        }
    }
    return kReplays;
}

} // namespace kvtrace_lifetime
