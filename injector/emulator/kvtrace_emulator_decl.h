/*
 * The emulator's driver API, for the emulated engine and for tests. Read by C++ and, as it stands,
 * by cffi: only comments, defines of integers, enums, typedefs and functions.
 *
 * The library also exports the Sanitizer entry points that the injector looks up, and
 * cuFuncGetName. It behaves as the real device was seen to behave (docs/measurements.md), faults
 * included. Calls return 0 or a CUresult; after a fault every later call of the context returns
 * that fault.
 */

#define KVTRACE_EMULATOR_MISALIGNED_ADDRESS 716

typedef struct kvtrace_emu_context kvtrace_emu_context;
typedef struct kvtrace_emu_module kvtrace_emu_module;
typedef struct kvtrace_emu_function kvtrace_emu_function;
typedef struct kvtrace_emu_stream kvtrace_emu_stream;
typedef struct kvtrace_emu_graph kvtrace_emu_graph;
typedef struct kvtrace_emu_exec kvtrace_emu_exec;
typedef struct kvtrace_emu_slots kvtrace_emu_slots;

typedef struct {
    uint32_t x;
    uint32_t y;
    uint32_t z;
} kvtrace_emu_dim;

/*
 * What a kernel writes into a KV cache: thread block x looks its KV slot up when it runs, and its 8
 * threads store K, then V, `access_size` bytes each, side by side, from
 *     key_address (value_address) + slot / block_size * block_stride
 *                                 + slot % block_size * offset_stride
 * on; below 0 it stores nothing. Only the addresses count: no memory is touched.
 */
typedef struct {
    const kvtrace_emu_slots *slots;
    uint64_t key_address;
    uint64_t value_address;
    /* Bytes from one KV block to the next, and from one token of it to the next. */
    uint64_t block_stride;
    uint64_t offset_stride;
    /* Tokens of a KV block. */
    uint32_t block_size;
    /* 1, 2, 4, 8 or 16. */
    uint32_t access_size;
} kvtrace_emu_cache_writes;

/* Like cuInit: loads the library that CUDA_INJECTION64_PATH names and calls its
 * InitializeInjection. Idempotent. */
int kvtrace_emu_init(void);

kvtrace_emu_context *kvtrace_emu_context_create(int device);
/* Waits for its streams, announces the end, frees its memory. */
void kvtrace_emu_context_destroy(kvtrace_emu_context *context);
/* Wait for all its streams; 0, or the fault that ended the context. */
int kvtrace_emu_context_synchronize(kvtrace_emu_context *context);
/* 0, or the fault that ended the context. */
int kvtrace_emu_context_error(kvtrace_emu_context *context);

/* Load a module whose image holds these kernel names. Functions are loaded at their first use, or
 * all at once if `eager` is not 0. */
kvtrace_emu_module *kvtrace_emu_module_load(kvtrace_emu_context *context, const char *const *names,
                                            uint32_t name_count, int eager);
void kvtrace_emu_module_unload(kvtrace_emu_module *module);
/* NULL if the module has no such kernel. */
kvtrace_emu_function *kvtrace_emu_get_function(kvtrace_emu_module *module, const char *name);
/* Blocks of this function that have run, patched or not: the truth to compare with. */
uint64_t kvtrace_emu_blocks_run(kvtrace_emu_function *function);

kvtrace_emu_stream *kvtrace_emu_stream_create(kvtrace_emu_context *context);
/* Returns 0 or the context's fault. */
int kvtrace_emu_stream_synchronize(kvtrace_emu_stream *stream);

/* Queue a kernel; in a capturing stream, add a node. `block_ns` is how long each block lasts. */
int kvtrace_emu_launch(kvtrace_emu_stream *stream, kvtrace_emu_function *function,
                       kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns);
/* The same for a kernel that writes; refused if the grid is wider than there are slots. */
int kvtrace_emu_launch_writing(kvtrace_emu_stream *stream, kvtrace_emu_function *function,
                               kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns,
                               const kvtrace_emu_cache_writes *writes);
int kvtrace_emu_memset(kvtrace_emu_stream *stream);

/* KV slots, one a thread block, all -1; they live as long as the context. */
kvtrace_emu_slots *kvtrace_emu_slots_create(kvtrace_emu_context *context, uint32_t capacity);
/* Queue a copy of these numbers into the slots, -1 into the rest; never captured. Refused if there
 * are more than slots. */
int kvtrace_emu_slots_set(kvtrace_emu_stream *stream, kvtrace_emu_slots *slots,
                          const int64_t *kv_slots, uint32_t count);

/* Capture: everything queued becomes a node after the stream's last one. */
int kvtrace_emu_begin_capture(kvtrace_emu_stream *stream);
/* Bring another stream into the capture (after `from`'s last node), or let `to` wait for `from`. */
int kvtrace_emu_wait(kvtrace_emu_stream *to, kvtrace_emu_stream *from);
kvtrace_emu_graph *kvtrace_emu_end_capture(kvtrace_emu_stream *stream);

kvtrace_emu_graph *kvtrace_emu_graph_create(void);
void kvtrace_emu_graph_destroy(kvtrace_emu_graph *graph);
/* Append after the graph's last node; each returns the node's index, or -1. */
int kvtrace_emu_add_kernel(kvtrace_emu_graph *graph, kvtrace_emu_function *function,
                           kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns);
int kvtrace_emu_add_child(kvtrace_emu_graph *graph, kvtrace_emu_graph *child);
/* An IF node: its body runs in every second launch, the first not among them. */
int kvtrace_emu_add_conditional(kvtrace_emu_graph *graph, kvtrace_emu_graph *branch_body);

kvtrace_emu_exec *kvtrace_emu_instantiate(kvtrace_emu_context *context, kvtrace_emu_graph *graph);
void kvtrace_emu_exec_destroy(kvtrace_emu_exec *exec);
/* `node` counts kernel nodes of the exec from 0, in order. */
int kvtrace_emu_exec_set_enabled(kvtrace_emu_exec *exec, uint32_t node, int enabled);
int kvtrace_emu_exec_set_grid(kvtrace_emu_exec *exec, uint32_t node, kvtrace_emu_dim grid);
int kvtrace_emu_graph_launch(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream);
int kvtrace_emu_graph_upload(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream);

/* Let the n-th call (from 1) of a Sanitizer function return `result`; n = 0: every call. */
void kvtrace_emu_fail(const char *function_name, uint32_t n, int result);
/* How often a Sanitizer function was called. */
uint64_t kvtrace_emu_calls(const char *function_name);
