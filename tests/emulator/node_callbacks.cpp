/*
 * What one node callback of a graph launch costs the host, without any driver's own share: the
 * subscriber is called as the driver calls it, for a decode graph's nodes, of which every tenth is
 * a target.
 *
 *     node_callbacks [REPLAYS]    prints one JSON line: ns per callback, medians over the replays
 *
 * Started like any program that is recorded. Pauses between replays let the drain thread keep up.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "driver.h"

namespace {

constexpr uint32_t kNodes = 400;
constexpr uint32_t kTargetEvery = 10;
constexpr uint32_t kOtherFunctions = 24;

double now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/* A graph's nodes as callbacks are given them; `nodes` of them, all targets or none. */
std::vector<Sanitizer_GraphNodeLaunchData>
make_nodes(kvtrace_emu_stream *stream, kvtrace_emu_exec *exec,
           const std::vector<kvtrace_emu_function *> &functions, uint32_t nodes) {
    std::vector<Sanitizer_GraphNodeLaunchData> made;
    for (uint32_t i = 0; i < nodes; ++i) {
        kvtrace_emu::Kernel kernel;
        kernel.function = functions[i % functions.size()];
        auto *node = new kvtrace_emu::ExecNode;
        Sanitizer_GraphNodeLaunchData data = {};
        data.graphExec = kvtrace_emu::as<CUgraphExec>(exec);
        data.node = kvtrace_emu::as<CUgraphNode>(node);
        data.nodeType = CU_GRAPH_NODE_TYPE_KERNEL;
        data.launchData = kvtrace_emu::describe(kernel, kvtrace_emu::next_grid_id(), stream);
        data.launchData.hLaunch = kvtrace_emu::as<Sanitizer_LaunchHandle>(node);
        made.push_back(data);
    }
    return made;
}

/* ns per callback of one replay over these nodes. */
double replay_once(kvtrace_emu_exec *exec, std::vector<Sanitizer_GraphNodeLaunchData> *nodes,
                   uint32_t launch_id) {
    for (Sanitizer_GraphNodeLaunchData &node : *nodes) {
        node.launchId = launch_id;
    }
    Sanitizer_GraphLaunchData launch = {};
    launch.graphExec = kvtrace_emu::as<CUgraphExec>(exec);
    kvtrace_emu::call_back(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, &launch);
    const double begin = now_ns();
    for (const Sanitizer_GraphNodeLaunchData &node : *nodes) {
        kvtrace_emu::call_back(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN,
                               &node);
    }
    return (now_ns() - begin) / static_cast<double>(nodes->size());
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

} // namespace

int main(int argc, char **argv) {
    const auto replays = static_cast<uint32_t>(argc == 2 ? std::strtoul(argv[1], nullptr, 10) : 0);
    if (replays == 0) {
        std::fprintf(stderr, "usage: node_callbacks REPLAYS\n");
        return 2;
    }
    kvtrace_emu_context *context = kvtrace_emu_context_create(0);
    const char *target_name[] = {"probe_target"};
    std::vector<std::string> names(kOtherFunctions);
    std::vector<const char *> texts(kOtherFunctions);
    for (uint32_t i = 0; i < kOtherFunctions; ++i) {
        names[i] = "other_kernel_" + std::to_string(i);
        texts[i] = names[i].c_str();
    }
    kvtrace_emu_module *probes = kvtrace_emu_module_load(context, target_name, 1, 1);
    kvtrace_emu_module *others = kvtrace_emu_module_load(context, texts.data(), kOtherFunctions, 1);
    std::vector<kvtrace_emu_function *> other_functions(kOtherFunctions);
    for (uint32_t i = 0; i < kOtherFunctions; ++i) {
        other_functions[i] = kvtrace_emu_get_function(others, texts[i]);
    }
    kvtrace_emu_stream *stream = kvtrace_emu_stream_create(context);
    kvtrace_emu_exec *exec = kvtrace_emu_instantiate(context, kvtrace_emu_graph_create());
    const uint32_t targets = kNodes / kTargetEvery;
    auto target_nodes =
        make_nodes(stream, exec, {kvtrace_emu_get_function(probes, "probe_target")}, targets);
    auto other_nodes = make_nodes(stream, exec, other_functions, kNodes - targets);
    std::vector<double> of_targets;
    std::vector<double> of_others;
    for (uint32_t i = 0; i < replays; ++i) {
        of_others.push_back(replay_once(exec, &other_nodes, 2 * i + 1));
        of_targets.push_back(replay_once(exec, &target_nodes, 2 * i + 2));
        const timespec pause = {0, 200000};
        nanosleep(&pause, nullptr);
    }
    std::printf("{\"replays\": %u, \"other_node_ns\": %.1f, \"target_node_ns\": %.1f}\n", replays,
                median(of_others), median(of_targets));
    return 0;
}
