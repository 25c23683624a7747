/* Contexts, modules, functions, streams and plain launches. */
#include "driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace kvtrace_emu;

namespace kvtrace_emu {
namespace {

std::atomic<uint64_t> last_grid_id{0};
std::atomic<uint64_t> last_pc{0x700000000000u};

const void *data_of(const kvtrace_emu_function &function) {
    return function.data.load(std::memory_order_acquire);
}

void announce_loaded(kvtrace_emu_function *function) {
    function->is_loaded = true;
    /* As where functions come loaded with their module. */
    if (std::getenv("KVTRACE_EMULATOR_QUIET_LOADS") != nullptr) {
        return;
    }
    const auto handle = as<CUfunction>(function);
    Sanitizer_ResourceFunctionsLazyLoadedData data = {};
    data.context = as<CUcontext>(function->module->context);
    data.module = as<CUmodule>(function->module);
    data.functions = &handle;
    data.numFunctions = 1;
    call_back(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED, &data);
}

void announce_module(kvtrace_emu_module *module, uint32_t id) {
    Sanitizer_ResourceModuleData data = {};
    data.context = as<CUcontext>(module->context);
    data.module = as<CUmodule>(module);
    data.pCubin = module->image.data();
    data.cubinSize = module->image.size();
    call_back(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

void announce_context(kvtrace_emu_context *context, uint32_t id) {
    Sanitizer_ResourceContextData data = {};
    data.context = as<CUcontext>(context);
    call_back(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

int launch_now(kvtrace_emu_stream *stream, const Kernel &kernel) {
    if (const int error = stream->context->error.load()) {
        return error;
    }
    const uint64_t grid_id = next_grid_id();
    Sanitizer_LaunchData data = describe(kernel, grid_id, stream);
    ExecNode launched;
    data.hLaunch = as<Sanitizer_LaunchHandle>(&launched);
    call_back(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &data);
    const void *bound = launched.has_launch_data ? launched.launch_data : data_of(*kernel.function);
    const uint32_t patches = patches_of(kernel);
    stream->push([kernel, patches, grid_id, bound] { run_grid(kernel, patches, grid_id, bound); });
    call_back(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &data);
    return 0;
}

std::vector<kvtrace_emu_stream *> streams_of(kvtrace_emu_context *context) {
    std::vector<kvtrace_emu_stream *> streams = {context->default_stream.get()};
    const std::lock_guard<std::mutex> lock(context->mutex);
    for (const auto &stream : context->streams) {
        streams.push_back(stream.get());
    }
    return streams;
}

void capture(kvtrace_emu_stream *stream, Node node) {
    node.after = stream->last_nodes;
    stream->capturing.load()->nodes.push_back(std::move(node));
    stream->last_nodes = {static_cast<int>(stream->capturing.load()->nodes.size()) - 1};
}

int launch_or_capture(kvtrace_emu_stream *stream, const Kernel &kernel) {
    if (stream->capturing == nullptr) {
        return launch_now(stream, kernel);
    }
    Node node;
    node.kernel = kernel;
    capture(stream, std::move(node));
    return 0;
}

bool are_valid(const kvtrace_emu_cache_writes &writes) {
    const uint32_t size = writes.access_size;
    return writes.slots != nullptr && writes.block_size != 0 && size != 0 && size <= 16 &&
           (size & (size - 1)) == 0;
}

} // namespace

/* Grid ids of a real process are not consecutive either. */
uint64_t next_grid_id() { return last_grid_id.fetch_add(13) + 13; }

void set_error(kvtrace_emu_context *context, int error) {
    int none = 0;
    context->error.compare_exchange_strong(none, error);
}

Sanitizer_LaunchData describe(const Kernel &kernel, uint64_t grid_id, kvtrace_emu_stream *stream) {
    Sanitizer_LaunchData data = {};
    data.context = as<CUcontext>(stream->context);
    data.stream = as<CUstream>(stream);
    data.hStream = as<Sanitizer_StreamHandle>(stream);
    data.module = as<CUmodule>(kernel.function->module);
    data.function = as<CUfunction>(kernel.function);
    data.functionName = kernel.function->name.c_str();
    data.gridDim_x = kernel.grid.x;
    data.gridDim_y = kernel.grid.y;
    data.gridDim_z = kernel.grid.z;
    data.blockDim_x = kernel.block.x;
    data.blockDim_y = kernel.block.y;
    data.blockDim_z = kernel.block.z;
    data.clusterDim_x = data.clusterDim_y = data.clusterDim_z = 1;
    data.gridId = grid_id;
    data.device = stream->context->device;
    return data;
}

} // namespace kvtrace_emu

extern "C" {

int kvtrace_emu_init(void) {
    static std::once_flag once;
    std::call_once(once, [] {
        const char *path = std::getenv("CUDA_INJECTION64_PATH");
        if (path == nullptr || path[0] == '\0') {
            return;
        }
        void *library = dlopen(path, RTLD_NOW);
        void *entry = library != nullptr ? dlsym(library, "InitializeInjection") : nullptr;
        if (entry == nullptr) {
            std::fprintf(stderr, "emulator: %s: no InitializeInjection\n", path);
            return;
        }
        reinterpret_cast<int (*)()>(entry)();
        /* The Sanitizer tells of this whatever was enabled. */
        const Sanitizer_ResourceContextData nothing = {};
        call_back_unasked(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_INIT_FINISHED,
                          &nothing);
    });
    return 0;
}

kvtrace_emu_context *kvtrace_emu_context_create(int device) {
    kvtrace_emu_init();
    auto *context = new kvtrace_emu_context;
    context->device = device;
    context->default_stream = std::make_unique<kvtrace_emu_stream>(context);
    announce_context(context, SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED);
    return context;
}

int kvtrace_emu_context_synchronize(kvtrace_emu_context *context) {
    for (kvtrace_emu_stream *stream : streams_of(context)) {
        stream->wait_idle();
    }
    return context->error.load();
}

void kvtrace_emu_context_destroy(kvtrace_emu_context *context) {
    kvtrace_emu_context_synchronize(context);
    announce_context(context, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
    context->streams.clear();
    delete context;
}

int kvtrace_emu_context_error(kvtrace_emu_context *context) { return context->error.load(); }

kvtrace_emu_module *kvtrace_emu_module_load(kvtrace_emu_context *context, const char *const *names,
                                            uint32_t name_count, int eager) {
    auto owned = std::make_unique<kvtrace_emu_module>();
    kvtrace_emu_module *module = owned.get();
    module->context = context;
    for (uint32_t i = 0; i < name_count; ++i) {
        auto function = std::make_unique<kvtrace_emu_function>();
        function->name = names[i];
        function->module = module;
        function->pc = last_pc.fetch_add(4096) + 4096;
        /* Like a symbol table: the names between zero bytes. */
        module->image += '\0' + function->name + '\0';
        module->functions.push_back(std::move(function));
    }
    {
        const std::lock_guard<std::mutex> lock(context->mutex);
        context->modules.push_back(std::move(owned));
    }
    announce_module(module, SANITIZER_CBID_RESOURCE_MODULE_LOADED);
    for (const auto &function : module->functions) {
        if (eager != 0) {
            announce_loaded(function.get());
        }
    }
    return module;
}

void kvtrace_emu_module_unload(kvtrace_emu_module *module) {
    announce_module(module, SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
    kvtrace_emu_context *context = module->context;
    const std::lock_guard<std::mutex> lock(context->mutex);
    for (auto at = context->modules.begin(); at != context->modules.end(); ++at) {
        if (at->get() == module) {
            context->modules.erase(at);
            return;
        }
    }
}

kvtrace_emu_function *kvtrace_emu_get_function(kvtrace_emu_module *module, const char *name) {
    for (const auto &function : module->functions) {
        if (function->name == name) {
            if (!function->is_loaded) {
                announce_loaded(function.get());
            }
            return function.get();
        }
    }
    return nullptr;
}

uint64_t kvtrace_emu_blocks_run(kvtrace_emu_function *function) {
    return function->blocks_run.load();
}

kvtrace_emu_stream *kvtrace_emu_stream_create(kvtrace_emu_context *context) {
    auto stream = std::make_unique<kvtrace_emu_stream>(context);
    const std::lock_guard<std::mutex> lock(context->mutex);
    context->streams.push_back(std::move(stream));
    return context->streams.back().get();
}

int kvtrace_emu_stream_synchronize(kvtrace_emu_stream *stream) {
    stream->wait_idle();
    Sanitizer_SynchronizeData data = {};
    data.context = as<CUcontext>(stream->context);
    data.stream = as<CUstream>(stream);
    call_back(SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED,
              &data);
    return stream->context->error.load();
}

int kvtrace_emu_launch(kvtrace_emu_stream *stream, kvtrace_emu_function *function,
                       kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns) {
    return launch_or_capture(stream, {function, grid, block, block_ns, {}});
}

int kvtrace_emu_launch_writing(kvtrace_emu_stream *stream, kvtrace_emu_function *function,
                               kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns,
                               const kvtrace_emu_cache_writes *writes) {
    const Kernel kernel = {function, grid, block, block_ns, *writes};
    if (!are_valid(*writes) || !kernel.has_slots_for(grid)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return launch_or_capture(stream, kernel);
}

kvtrace_emu_slots *kvtrace_emu_slots_create(kvtrace_emu_context *context, uint32_t capacity) {
    auto slots = std::make_unique<kvtrace_emu_slots>(capacity);
    const std::lock_guard<std::mutex> lock(context->mutex);
    context->slots.push_back(std::move(slots));
    return context->slots.back().get();
}

int kvtrace_emu_slots_set(kvtrace_emu_stream *stream, kvtrace_emu_slots *slots,
                          const int64_t *kv_slots, uint32_t count) {
    if (count > slots->kv_slots.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<int64_t> copied(kv_slots, kv_slots + count);
    copied.resize(slots->kv_slots.size(), -1);
    stream->push([slots, copied = std::move(copied)] {
        for (size_t row = 0; row < copied.size(); ++row) {
            slots->kv_slots[row].store(copied[row], std::memory_order_relaxed);
        }
    });
    return stream->context->error.load();
}

int kvtrace_emu_memset(kvtrace_emu_stream *stream) {
    if (stream->capturing == nullptr) {
        stream->push([] {});
        return stream->context->error.load();
    }
    Node node;
    node.kind = NodeKind::kMemset;
    capture(stream, std::move(node));
    return 0;
}

int kvtrace_emu_begin_capture(kvtrace_emu_stream *stream) {
    stream->capturing = new kvtrace_emu_graph;
    stream->last_nodes.clear();
    return 0;
}

int kvtrace_emu_wait(kvtrace_emu_stream *to, kvtrace_emu_stream *from) {
    if (from->capturing == nullptr) {
        from->wait_idle();
        return to->context->error.load();
    }
    if (to->capturing == nullptr) {
        to->capturing = from->capturing.load();
        to->last_nodes.clear();
    }
    to->last_nodes.insert(to->last_nodes.end(), from->last_nodes.begin(), from->last_nodes.end());
    return 0;
}

kvtrace_emu_graph *kvtrace_emu_end_capture(kvtrace_emu_stream *stream) {
    kvtrace_emu_graph *graph = stream->capturing;
    const std::lock_guard<std::mutex> lock(stream->context->mutex);
    for (const auto &other : stream->context->streams) {
        if (other->capturing == graph) {
            other->capturing = nullptr;
        }
    }
    return graph;
}

} // extern "C"
