/* Graphs: building, instantiating, replaying. */
#include "driver.h"

#include <algorithm>
#include <deque>

using namespace kvtrace_emu;

namespace kvtrace_emu {
namespace {

/* Memory of destroyed execs is used for new ones, so that handles come back as real ones do. */
struct ExecMemory {
    std::mutex mutex;
    std::vector<kvtrace_emu_exec *> free;
};

/* Never destroyed: late threads may still ask while the process exits. */
ExecMemory &exec_memory() {
    static ExecMemory &memory = *new ExecMemory;
    return memory;
}

/* Copy a graph's nodes behind `first_before`; returns the indices of the copies. */
std::vector<uint32_t> flatten(kvtrace_emu_exec *exec, const kvtrace_emu_graph &graph,
                              const std::vector<uint32_t> &first_before, bool is_conditional);

void link(kvtrace_emu_exec *exec, uint32_t from, uint32_t to) {
    exec->nodes[from]->next.push_back(to);
    ++exec->nodes[to]->before;
}

uint32_t add_exec_node(kvtrace_emu_exec *exec, const Node &node, bool is_conditional) {
    auto made = std::make_unique<ExecNode>();
    made->kind = node.kind;
    made->kernel = node.kernel;
    made->is_conditional_body = is_conditional;
    if (node.kind == NodeKind::kKernel) {
        made->grid_id = next_grid_id();
    } else {
        exec->has_only_kernels = false;
    }
    exec->nodes.push_back(std::move(made));
    return static_cast<uint32_t>(exec->nodes.size()) - 1;
}

/* Add one node behind `before`; returns its last exec nodes (several for a child graph). */
std::vector<uint32_t> add_node(kvtrace_emu_exec *exec, const Node &node,
                               const std::vector<uint32_t> &before, bool is_conditional) {
    if (node.kind == NodeKind::kChild) {
        return flatten(exec, *node.child, before, is_conditional);
    }
    const uint32_t index = add_exec_node(exec, node, is_conditional);
    for (const uint32_t from : before) {
        link(exec, from, index);
    }
    if (node.kind == NodeKind::kConditional) {
        return flatten(exec, *node.child, {index}, true);
    }
    return {index};
}

std::vector<uint32_t> flatten(kvtrace_emu_exec *exec, const kvtrace_emu_graph &graph,
                              const std::vector<uint32_t> &first_before, bool is_conditional) {
    std::vector<std::vector<uint32_t>> last_of(graph.nodes.size());
    std::vector<bool> is_followed(graph.nodes.size(), false);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        std::vector<uint32_t> before;
        for (const int from : graph.nodes[i].after) {
            is_followed[static_cast<size_t>(from)] = true;
            const auto &last = last_of[static_cast<size_t>(from)];
            before.insert(before.end(), last.begin(), last.end());
        }
        last_of[i] = add_node(exec, graph.nodes[i],
                              graph.nodes[i].after.empty() ? first_before : before, is_conditional);
    }
    std::vector<uint32_t> last;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
        if (!is_followed[i]) {
            last.insert(last.end(), last_of[i].begin(), last_of[i].end());
        }
    }
    return last.empty() ? first_before : last;
}

/* What one replay runs, fixed when it is submitted. */
struct Step {
    Kernel kernel;
    uint32_t patches = 0;
    uint64_t grid_id = 0;
    const void *data = nullptr;
    bool runs = false;
    uint32_t before = 0;
    std::vector<uint32_t> next;
};

/* Runs the steps of one replay, branches side by side. */
class Replay {
  public:
    explicit Replay(std::vector<Step> steps) : steps_(std::move(steps)) {}

    void run() {
        for (uint32_t i = 0; i < steps_.size(); ++i) {
            if (steps_[i].before == 0) {
                ready_.push_back(i);
            }
        }
        const size_t threads = std::min<size_t>(width(), kMostThreads);
        std::vector<std::thread> helpers;
        for (size_t i = 1; i < threads; ++i) {
            helpers.emplace_back([this] { work(); });
        }
        work();
        for (std::thread &helper : helpers) {
            helper.join();
        }
    }

  private:
    static constexpr size_t kMostThreads = 16;

    /* How many branches leave one node at most: 1 for a chain, which needs no helper. */
    size_t width() const {
        size_t most = ready_.size();
        for (const Step &step : steps_) {
            most = std::max(most, step.next.size());
        }
        return most;
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            changed_.wait(lock, [this] { return !ready_.empty() || done_ == steps_.size(); });
            if (ready_.empty()) {
                return;
            }
            const uint32_t index = ready_.front();
            ready_.pop_front();
            lock.unlock();
            const Step &step = steps_[index];
            if (step.runs) {
                run_grid(step.kernel, step.patches, step.grid_id, step.data);
            }
            lock.lock();
            ++done_;
            for (const uint32_t next : step.next) {
                if (--steps_[next].before == 0) {
                    ready_.push_back(next);
                }
            }
            if (ready_.size() > 1 || done_ == steps_.size()) {
                changed_.notify_all();
            }
        }
    }

    std::vector<Step> steps_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<uint32_t> ready_;
    size_t done_ = 0;
};

/* Tell the subscriber of every node, as the driver does inside the launch call. */
void announce_nodes(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream, bool is_upload) {
    for (const auto &node : exec->nodes) {
        node->has_launch_data = false;
        if (!node->is_enabled || node->kind == NodeKind::kMemset) {
            continue;
        }
        Sanitizer_GraphNodeLaunchData data = {};
        data.graphExec = as<CUgraphExec>(exec);
        data.launchId = exec->launch_count;
        data.node = as<CUgraphNode>(node.get());
        data.isGraphUpload = is_upload ? 1 : 0;
        data.nodeType = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        if (node->kind == NodeKind::kKernel) {
            data.nodeType = CU_GRAPH_NODE_TYPE_KERNEL;
            data.launchData = describe(node->kernel, node->grid_id, stream);
            data.launchData.hLaunch = as<Sanitizer_LaunchHandle>(node.get());
            data.launchData.apiContext = as<CUcontext>(stream->context);
            data.launchData.apiStream = as<CUstream>(stream);
            data.launchData.hApiStream = as<Sanitizer_StreamHandle>(stream);
        }
        call_back(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &data);
    }
}

/* In a graph of kernel nodes only, the data bound last counts for every node that was bound. */
const void *shared_launch_data(const kvtrace_emu_exec &exec) {
    const void *last = nullptr;
    for (const auto &node : exec.nodes) {
        last = node->has_launch_data ? node->launch_data : last;
    }
    return last;
}

const void *data_of(const kvtrace_emu_exec &exec, const ExecNode &node, const void *shared) {
    if (node.has_launch_data) {
        return exec.has_only_kernels ? shared : node.launch_data;
    }
    const kvtrace_emu_function &function = *node.kernel.function;
    return function.is_bound.load(std::memory_order_acquire)
               ? function.data.load(std::memory_order_acquire)
               : reinterpret_cast<const void *>(kGarbagePointer);
}

std::vector<Step> plan_replay(const kvtrace_emu_exec &exec) {
    const void *shared = shared_launch_data(exec);
    /* The IF node's condition: false in the first launch, true in the second, and so on. */
    const bool condition = exec.launch_count % 2 == 0;
    std::vector<Step> steps;
    for (const auto &node : exec.nodes) {
        Step step;
        step.before = node->before;
        step.next = node->next;
        if (node->kind == NodeKind::kKernel) {
            step.kernel = node->kernel;
            step.patches = patches_of(node->kernel);
            step.grid_id = node->grid_id;
            step.data = data_of(exec, *node, shared);
            step.runs = node->is_enabled && (condition || !node->is_conditional_body);
        }
        steps.push_back(std::move(step));
    }
    return steps;
}

void announce_launch(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream, uint32_t id,
                     bool is_upload) {
    Sanitizer_GraphLaunchData data = {};
    data.context = as<CUcontext>(stream->context);
    data.stream = as<CUstream>(stream);
    data.hStream = as<Sanitizer_StreamHandle>(stream);
    data.graphExec = as<CUgraphExec>(exec);
    data.isGraphUpload = is_upload ? 1 : 0;
    call_back(SANITIZER_CB_DOMAIN_GRAPHS, id, &data);
}

void announce_exec(kvtrace_emu_exec *exec, kvtrace_emu_graph *graph, uint32_t id) {
    Sanitizer_GraphExecData data = {};
    data.graph = as<CUgraph>(graph);
    data.graphExec = as<CUgraphExec>(exec);
    call_back(SANITIZER_CB_DOMAIN_GRAPHS, id, &data);
}

int append(kvtrace_emu_graph *graph, Node node) {
    if (!graph->nodes.empty()) {
        node.after.push_back(static_cast<int>(graph->nodes.size()) - 1);
    }
    graph->nodes.push_back(std::move(node));
    return static_cast<int>(graph->nodes.size()) - 1;
}

ExecNode *kernel_node(kvtrace_emu_exec *exec, uint32_t number) {
    for (const auto &node : exec->nodes) {
        if (node->kind == NodeKind::kKernel && number-- == 0) {
            return node.get();
        }
    }
    return nullptr;
}

} // namespace
} // namespace kvtrace_emu

extern "C" {

kvtrace_emu_graph *kvtrace_emu_graph_create(void) { return new kvtrace_emu_graph; }

void kvtrace_emu_graph_destroy(kvtrace_emu_graph *graph) { delete graph; }

int kvtrace_emu_add_kernel(kvtrace_emu_graph *graph, kvtrace_emu_function *function,
                           kvtrace_emu_dim grid, kvtrace_emu_dim block, uint32_t block_ns) {
    Node node;
    node.kernel = {function, grid, block, block_ns, {}};
    return append(graph, std::move(node));
}

int kvtrace_emu_add_child(kvtrace_emu_graph *graph, kvtrace_emu_graph *child) {
    Node node;
    node.kind = NodeKind::kChild;
    node.child = child;
    return append(graph, std::move(node));
}

int kvtrace_emu_add_conditional(kvtrace_emu_graph *graph, kvtrace_emu_graph *branch_body) {
    Node node;
    node.kind = NodeKind::kConditional;
    node.child = branch_body;
    return append(graph, std::move(node));
}

kvtrace_emu_exec *kvtrace_emu_instantiate(kvtrace_emu_context *context, kvtrace_emu_graph *graph) {
    kvtrace_emu_exec *exec = nullptr;
    {
        ExecMemory &memory = exec_memory();
        const std::lock_guard<std::mutex> lock(memory.mutex);
        if (!memory.free.empty()) {
            exec = memory.free.back();
            memory.free.pop_back();
        }
    }
    exec = exec != nullptr ? exec : new kvtrace_emu_exec;
    announce_exec(exec, graph, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATING);
    exec->context = context;
    exec->launch_count = 0;
    exec->has_only_kernels = true;
    exec->nodes.clear();
    flatten(exec, *graph, {}, false);
    announce_exec(exec, graph, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED);
    return exec;
}

void kvtrace_emu_exec_destroy(kvtrace_emu_exec *exec) {
    announce_exec(exec, nullptr, SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING);
    ExecMemory &memory = exec_memory();
    const std::lock_guard<std::mutex> lock(memory.mutex);
    memory.free.push_back(exec);
}

int kvtrace_emu_exec_set_enabled(kvtrace_emu_exec *exec, uint32_t node, int enabled) {
    ExecNode *found = kernel_node(exec, node);
    if (found == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found->is_enabled = enabled != 0;
    return 0;
}

int kvtrace_emu_exec_set_grid(kvtrace_emu_exec *exec, uint32_t node, kvtrace_emu_dim grid) {
    ExecNode *found = kernel_node(exec, node);
    if (found == nullptr || !found->kernel.has_slots_for(grid)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found->kernel.grid = grid;
    return 0;
}

int kvtrace_emu_graph_launch(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream) {
    if (const int error = stream->context->error.load()) {
        return error;
    }
    ++exec->launch_count;
    announce_launch(exec, stream, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, false);
    announce_nodes(exec, stream, false);
    stream->push([steps = plan_replay(*exec)]() mutable { Replay(std::move(steps)).run(); });
    announce_launch(exec, stream, SANITIZER_CBID_GRAPHS_LAUNCH_END, false);
    return 0;
}

int kvtrace_emu_graph_upload(kvtrace_emu_exec *exec, kvtrace_emu_stream *stream) {
    announce_launch(exec, stream, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, true);
    announce_nodes(exec, stream, true);
    announce_launch(exec, stream, SANITIZER_CBID_GRAPHS_LAUNCH_END, true);
    return stream->context->error.load();
}

} // extern "C"
