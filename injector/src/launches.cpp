#include "launches.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "contexts.h"
#include "drain.h"
#include "failure.h"
#include "modules.h"
#include "step_stamp.h"

namespace kvtrace {
namespace {

/* The graph launch that this thread is in: its node callbacks come on the same thread. What is the
 * same for all its target nodes is found once, at the first of them. */
struct Replay {
    CUgraphExec graph_exec = nullptr;
    uint32_t generation = 0;
    uint32_t launch_id = 0;
    /* 0 until the replay meets its first target node: stamps are for those only. */
    uint32_t stamp = 0;
    uint32_t step_stamp = 0;
    uint64_t host_monotonic_ns = 0;
    CUcontext context_handle = nullptr;
    const Context *context = nullptr;
    bool is_upload = false;
    /* Recording was switched off when the first target node came: all of them pass. */
    bool is_passed = false;
};

/* One object, so that a callback looks the thread's storage up once. */
struct OfThread {
    Replay replay;
    uint32_t thread_id = 0;

    uint32_t id() {
        if (thread_id == 0) {
            thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
        }
        return thread_id;
    }
};
thread_local OfThread of_thread;

template <typename Handle> uint64_t as_number(Handle handle) {
    return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
}

uint32_t generation_of(Injector *self, CUgraphExec graph_exec) {
    const std::lock_guard<std::mutex> lock(self->graph_mutex);
    const auto found = self->graph_generations.find(graph_exec);
    return found != self->graph_generations.end() ? found->second : 0;
}

void begin_replay(Injector *self, Replay *replay, CUgraphExec graph_exec, bool is_upload) {
    *replay = Replay();
    replay->graph_exec = graph_exec;
    replay->generation = generation_of(self, graph_exec);
    replay->is_upload = is_upload;
}

/* Find what all target nodes of the replay share; the context again if a node has another. */
void meet_target(Injector *self, Replay *replay, const Sanitizer_GraphNodeLaunchData &node) {
    if (replay->launch_id == 0) {
        replay->launch_id = node.launchId;
        replay->step_stamp = current_step_stamp();
        replay->host_monotonic_ns = host_monotonic_ns();
        replay->is_passed = self->recording_switch.is_off();
    }
    if (replay->context_handle != node.launchData.context) {
        replay->context_handle = node.launchData.context;
        replay->context = find_context(self, node.launchData.context);
    }
}

/* Bind data to one launch alone. */
bool bind_launch(Injector *self, const Sanitizer_LaunchData &launch, const void *data,
                 const char *what) {
    return check(
        self->api.set_launch_callback_data(launch.hLaunch, launch.function, launch.hStream, data),
        KVTRACE_SITE_BIND_LAUNCH, what);
}

/* What is known of a launched function. One that could not be bound gets NULL for this launch, and
 * so leaves no event. */
FunctionInfo function_of(Injector *self, const Sanitizer_LaunchData &launch) {
    const FunctionInfo info = look_up_function(self, launch);
    if (info.is_unbound) {
        bind_launch(self, launch, nullptr, "unbound function");
    }
    return info;
}

uint32_t take_stamp(Injector *self) {
    return self->last_stamp.fetch_add(1, std::memory_order_relaxed) % KVTRACE_MAX_LAUNCH_STAMP + 1;
}

bool stamp_launch(Injector *self, Replay *replay, const Sanitizer_LaunchData &launch) {
    if (self->has_flag(KVTRACE_CONFIG_NO_STAMPS) ||
        self->stamps_off.load(std::memory_order_relaxed)) {
        return false;
    }
    if (replay->stamp == 0) {
        replay->stamp = take_stamp(self);
    }
    /* One pointer for all target nodes of a replay: what differs from node to node is not safe. */
    if (bind_launch(self, launch, replay->context->for_stamp(replay->stamp), "launch stamp")) {
        return true;
    }
    self->stamps_off.store(true, std::memory_order_relaxed);
    return false;
}

kvtrace_launch_record make_record(const Sanitizer_LaunchData &launch, uint32_t kernel_slot,
                                  const Context *context) {
    kvtrace_launch_record record = {};
    record.grid_id = launch.gridId;
    record.stream = as_number(launch.stream);
    record.kernel_slot = kernel_slot;
    record.grid_dim_x = launch.gridDim_x;
    record.grid_dim_y = static_cast<uint16_t>(launch.gridDim_y);
    record.grid_dim_z = static_cast<uint16_t>(launch.gridDim_z);
    record.block_dim_x = static_cast<uint16_t>(launch.blockDim_x);
    record.block_dim_y = static_cast<uint16_t>(launch.blockDim_y);
    record.block_dim_z = static_cast<uint16_t>(launch.blockDim_z);
    record.context_index = context != nullptr ? static_cast<uint16_t>(context->index) : 0;
    record.device_ordinal = static_cast<uint16_t>(launch.device);
    return record;
}

/* Let a launch of a target pass without a record: its blocks must leave no event either. */
void pass_launch(Injector *self, const Sanitizer_LaunchData &launch, const Context *context,
                 bool is_patched) {
    if (is_patched && context != nullptr && self->records_blocks()) {
        bind_launch(self, launch, context->for_nothing(), "nothing to record");
    }
    self->recording_switch.count_passed(uint64_t{launch.gridDim_x} * launch.gridDim_y *
                                        launch.gridDim_z);
}

void append(Injector *self, const kvtrace_launch_record &record) {
    self->launches.append(record);
    launch_appended(self);
}

} // namespace

void plain_launch(Injector *self, const Sanitizer_LaunchData &launch) {
    const FunctionInfo info = function_of(self, launch);
    if (info.kernel_slot == kNotTarget) {
        return;
    }
    const Context *context = find_context(self, launch.context);
    if (self->recording_switch.is_off()) {
        pass_launch(self, launch, context, info.is_patched);
        return;
    }
    kvtrace_launch_record record = make_record(launch, info.kernel_slot, context);
    record.launch_kind = KVTRACE_LAUNCH_PLAIN;
    record.host_monotonic_ns = host_monotonic_ns();
    record.step_stamp = current_step_stamp();
    record.thread_id = of_thread.id();
    if (info.is_patched && context != nullptr && self->records_blocks()) {
        record.launch_flags = KVTRACE_LAUNCH_PATCHED;
    }
    append(self, record);
}

void graph_exec_created(Injector *self, const Sanitizer_GraphExecData &data) {
    if (data.isDeviceLaunch != 0 || data.containsDeviceGraphLaunches != 0) {
        self->process_flags.fetch_or(KVTRACE_FILE_DEVICE_GRAPHS, std::memory_order_relaxed);
    }
    const std::lock_guard<std::mutex> lock(self->graph_mutex);
    self->graph_generations[data.graphExec] = ++self->last_generation;
}

void graph_exec_destroying(Injector *self, const Sanitizer_GraphExecData &data) {
    const std::lock_guard<std::mutex> lock(self->graph_mutex);
    self->graph_generations.erase(data.graphExec);
}

void graph_launch(Injector *self, const Sanitizer_GraphLaunchData &data) {
    begin_replay(self, &of_thread.replay, data.graphExec, data.isGraphUpload != 0);
}

/* A decode graph has hundreds of nodes and some tens of targets: what is no target goes no further
 * than the comparison of its handle. */
void graph_node_launch(Injector *self, const Sanitizer_GraphNodeLaunchData &node) {
    if (node.nodeType != CU_GRAPH_NODE_TYPE_KERNEL) {
        if (node.nodeType == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            self->process_flags.fetch_or(KVTRACE_FILE_CONDITIONAL_NODES, std::memory_order_relaxed);
        }
        return;
    }
    const Sanitizer_LaunchData &launch = node.launchData;
    const FunctionInfo info = function_of(self, launch);
    if (info.kernel_slot == kNotTarget) {
        return;
    }
    OfThread *thread = &of_thread;
    Replay *replay = &thread->replay;
    if (replay->graph_exec != node.graphExec ||
        (replay->launch_id != 0 && replay->launch_id != node.launchId)) {
        begin_replay(self, replay, node.graphExec, false);
    }
    /* An upload raises the same callbacks and runs nothing. */
    if (replay->is_upload || node.isGraphUpload != 0) {
        return;
    }
    meet_target(self, replay, node);
    if (replay->is_passed) {
        pass_launch(self, launch, replay->context, info.is_patched);
        return;
    }
    kvtrace_launch_record record = make_record(launch, info.kernel_slot, replay->context);
    record.launch_kind = KVTRACE_LAUNCH_GRAPH_NODE;
    record.graph_exec = as_number(node.graphExec);
    record.graph_node = as_number(node.node);
    record.api_stream = as_number(launch.apiStream);
    record.exec_generation = replay->generation;
    record.launch_id = node.launchId;
    record.host_monotonic_ns = replay->host_monotonic_ns;
    record.step_stamp = replay->step_stamp;
    record.thread_id = thread->id();
    if (info.is_patched && replay->context != nullptr) {
        const bool is_stamped = stamp_launch(self, replay, launch);
        if (self->records_blocks()) {
            record.launch_flags = is_stamped ? KVTRACE_LAUNCH_PATCHED | KVTRACE_LAUNCH_STAMPED
                                             : KVTRACE_LAUNCH_PATCHED;
            record.launch_stamp = is_stamped ? replay->stamp : 0;
        }
    }
    append(self, record);
}

} // namespace kvtrace
