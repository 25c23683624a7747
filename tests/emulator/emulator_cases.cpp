/*
 * tests/gpu/graph_cases.cu on the emulator, case by case under the same names, and more ways to end
 * a process than a GPU machine has time for:
 *
 *     emulator_cases CASE         prints one JSON line with what really ran
 *
 * Targets are probe_target, probe_target_b and probe_target_graph_only; probe_neighbour lives in
 * the same module and must never show up; other_kernel lives in another module.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "kvtrace_emulator_decl.h"
}

namespace {

std::atomic<bool> drain_is_held{false};
std::atomic<bool> drain_is_parked{false};
std::atomic<uint64_t> drain_sleeps{0};

bool is_drain_thread() {
    char name[16] = {};
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           strcmp(name, "kvtrace-drain") == 0;
}

} // namespace

/* The program's symbol comes before libc's, so the injector's drain thread sleeps here: a case says
 * when it drains, and neither a fast nor a busy machine changes what is lost. */
extern "C" int nanosleep(const timespec *time, timespec *left) {
    if (is_drain_thread()) {
        drain_sleeps.fetch_add(1);
        while (drain_is_held.load()) {
            drain_is_parked.store(true);
            clock_nanosleep(CLOCK_MONOTONIC, 0, time, nullptr);
        }
        drain_is_parked.store(false);
    }
    errno = clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
    return errno == 0 ? 0 : -1;
}

namespace {

/* Wait for the drain thread; a program in which none runs ends with an error. */
void wait_until(const std::function<bool()> &condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
        if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) {
            std::fprintf(stderr, "emulator_cases: the injector's drain thread never came\n");
            std::exit(10);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

/* From here on nothing leaves the rings, until let_drain(). */
void hold_drain() {
    drain_is_held.store(true);
    wait_until([] { return drain_is_parked.load(); });
}

void let_drain() { drain_is_held.store(false); }

/* Until the drain thread has looked at all that was there at the call. */
void wait_for_drain() {
    const uint64_t begin = drain_sleeps.load();
    wait_until([begin] { return drain_sleeps.load() >= begin + 2; });
}

using Context = kvtrace_emu_context *;
using Stream = kvtrace_emu_stream *;
using Graph = kvtrace_emu_graph *;
using Exec = kvtrace_emu_exec *;
using Function = kvtrace_emu_function *;

constexpr int kNodes = 40;
constexpr int kReplays = 7;
constexpr uint32_t kThreads = 64;

/* What one context holds; made as a CUDA program makes it, at its first call. */
struct Device {
    Context context;
    kvtrace_emu_module *probes;
    kvtrace_emu_module *others;
    Function target;
    Function target_b;
    Function neighbour;
    Function other;
};

Device device;

/* Loaded late, as a kernel that is only ever captured would be. */
Function graph_only_target() {
    return kvtrace_emu_get_function(device.probes, "probe_target_graph_only");
}

Device open_device() {
    const char *eager_text = std::getenv("CUDA_MODULE_LOADING");
    const int eager = eager_text != nullptr && std::string(eager_text) == "EAGER";
    const char *probes[] = {"probe_target", "probe_target_b", "probe_target_graph_only",
                            "probe_neighbour"};
    const char *others[] = {"other_kernel"};
    Device made = {};
    made.context = kvtrace_emu_context_create(0);
    made.probes = kvtrace_emu_module_load(made.context, probes, 4, eager);
    made.others = kvtrace_emu_module_load(made.context, others, 1, eager);
    made.target = kvtrace_emu_get_function(made.probes, "probe_target");
    made.target_b = kvtrace_emu_get_function(made.probes, "probe_target_b");
    made.neighbour = kvtrace_emu_get_function(made.probes, "probe_neighbour");
    made.other = kvtrace_emu_get_function(made.others, "other_kernel");
    return made;
}

[[noreturn]] void fail(int error, int line) {
    std::printf("{\"error\": \"%s\", \"code\": %d, \"line\": %d}\n",
                error == KVTRACE_EMULATOR_MISALIGNED_ADDRESS ? "misaligned address" : "unknown",
                error, line);
    std::fflush(stdout);
    std::_Exit(9);
}

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if (const int result_ = (call)) {                                                          \
            fail(result_, __LINE__);                                                               \
        }                                                                                          \
    } while (0)

void launch(Stream stream, Function function, uint32_t blocks = 1, uint32_t block_ns = 0) {
    CHECK(kvtrace_emu_launch(stream, function, {blocks, 1, 1}, {kThreads, 1, 1}, block_ns));
}

void launch_target(Stream stream, uint32_t blocks = 1) { launch(stream, device.target, blocks); }
void launch_neighbour(Stream stream) { launch(stream, device.neighbour); }
Stream new_stream() { return kvtrace_emu_stream_create(device.context); }

Graph capture(Stream stream, const std::function<void()> &body) {
    CHECK(kvtrace_emu_begin_capture(stream));
    body();
    return kvtrace_emu_end_capture(stream);
}

Exec instantiate(Graph graph) { return kvtrace_emu_instantiate(device.context, graph); }

void replay(Exec exec, Stream stream, int times = kReplays) {
    for (int i = 0; i < times; ++i) {
        CHECK(kvtrace_emu_graph_launch(exec, stream));
    }
}

enum class Between { kNothing, kNeighbour, kOther, kMemset };

void body_of(Stream stream, Between between, bool target_last) {
    for (int i = 0; i < kNodes; ++i) {
        if (target_last && between == Between::kNeighbour) {
            launch_neighbour(stream);
        }
        launch_target(stream);
        if (!target_last && between == Between::kNeighbour) {
            launch_neighbour(stream);
        }
        if (between == Between::kOther) {
            launch(stream, device.other);
        }
        if (between == Between::kMemset) {
            CHECK(kvtrace_emu_memset(stream));
            launch_neighbour(stream);
        }
    }
}

Exec captured_body(Stream stream, Between between, bool target_last) {
    return instantiate(capture(stream, [&] { body_of(stream, between, target_last); }));
}

void simple_graph(Between between, bool target_last) {
    Stream stream = new_stream();
    replay(captured_body(stream, between, target_last), stream);
}

void plain() {
    Stream stream = new_stream();
    for (uint32_t i = 0; i < 50; ++i) {
        CHECK(kvtrace_emu_launch(stream, device.target, {1 + i % 5, 1 + i % 3, 1 + i % 2},
                                 {kThreads, 1, 1}, 0));
        launch_neighbour(stream);
    }
}

void plain_and_graph() {
    Stream stream = new_stream();
    launch_target(stream, 8);
    Exec exec = captured_body(stream, Between::kNeighbour, true);
    for (int i = 0; i < kReplays; ++i) {
        launch_target(stream, 3);
        replay(exec, stream, 1);
    }
}

void two_targets() {
    Stream stream = new_stream();
    Graph graph = capture(stream, [&] {
        for (int i = 0; i < kNodes; ++i) {
            launch_target(stream);
            launch(stream, device.target_b, 2);
            launch_neighbour(stream);
        }
    });
    replay(instantiate(graph), stream);
}

void graph_only() {
    Stream stream = new_stream();
    Graph graph = capture(stream, [&] {
        for (int i = 0; i < 6; ++i) {
            launch(stream, graph_only_target());
        }
    });
    replay(instantiate(graph), stream, 3);
}

/* Blocks of each branch last longer than those of the one before, so that the branches overtake
 * each other in every replay. */
void streams(uint32_t count) {
    std::vector<Stream> side;
    for (uint32_t s = 0; s < count; ++s) {
        side.push_back(new_stream());
    }
    Graph graph = capture(side[0], [&] {
        for (uint32_t s = 1; s < count; ++s) {
            CHECK(kvtrace_emu_wait(side[s], side[0]));
        }
        for (int i = 0; i < 25; ++i) {
            for (uint32_t s = 0; s < count; ++s) {
                launch(side[s], device.target, 1 + s % 2, 20000 * (1 + s));
                launch_neighbour(side[s]);
            }
        }
        for (uint32_t s = 1; s < count; ++s) {
            CHECK(kvtrace_emu_wait(side[0], side[s]));
        }
    });
    replay(instantiate(graph), side[0]);
}

void two_threads() {
    const auto work = [] {
        Stream stream = new_stream();
        replay(captured_body(stream, Between::kNeighbour, false), stream, 100);
        CHECK(kvtrace_emu_stream_synchronize(stream));
    };
    std::thread one(work);
    std::thread two(work);
    one.join();
    two.join();
}

void two_execs() {
    Stream one = new_stream();
    Stream two = new_stream();
    Graph graph = capture(one, [&] { body_of(one, Between::kNeighbour, true); });
    Exec first = instantiate(graph);
    Exec second = instantiate(graph);
    for (int i = 0; i < kReplays; ++i) {
        replay(first, one, 1);
        replay(second, two, 1);
    }
}

void child_graphs() {
    Stream stream = new_stream();
    Graph child = capture(stream, [&] {
        for (int i = 0; i < 5; ++i) {
            launch_target(stream);
            launch_neighbour(stream);
        }
    });
    Graph parent = kvtrace_emu_graph_create();
    kvtrace_emu_add_child(parent, child);
    kvtrace_emu_add_child(parent, child);
    replay(instantiate(parent), stream);
}

void upload() {
    Stream stream = new_stream();
    Exec exec = captured_body(stream, Between::kNeighbour, true);
    CHECK(kvtrace_emu_graph_upload(exec, stream));
    replay(exec, stream, 2);
    CHECK(kvtrace_emu_graph_upload(exec, stream));
    replay(exec, stream, 1);
}

void conditional() {
    Stream stream = new_stream();
    Graph branch_body = kvtrace_emu_graph_create();
    for (int i = 0; i < 5; ++i) {
        kvtrace_emu_add_kernel(branch_body, device.target, {1, 1, 1}, {kThreads, 1, 1}, 0);
    }
    Graph graph = kvtrace_emu_graph_create();
    kvtrace_emu_add_kernel(graph, device.neighbour, {1, 1, 1}, {1, 1, 1}, 0);
    kvtrace_emu_add_conditional(graph, branch_body);
    replay(instantiate(graph), stream, 4);
}

void disabled() {
    Stream stream = new_stream();
    Exec exec = captured_body(stream, Between::kNothing, true);
    CHECK(kvtrace_emu_exec_set_enabled(exec, kNodes / 2, 0));
    CHECK(kvtrace_emu_exec_set_enabled(exec, kNodes - 1, 0));
    replay(exec, stream);
}

void changed_parameters() {
    Stream stream = new_stream();
    Exec exec = instantiate(capture(stream, [&] {
        launch_target(stream, 2);
        launch_neighbour(stream);
    }));
    replay(exec, stream, 3);
    CHECK(kvtrace_emu_exec_set_grid(exec, 0, {7, 1, 1}));
    replay(exec, stream, 3);
}

void recreated() {
    Stream stream = new_stream();
    Graph graph = capture(stream, [&] { body_of(stream, Between::kNeighbour, true); });
    for (int i = 0; i < 6; ++i) {
        Exec exec = instantiate(graph);
        replay(exec, stream, 2);
        CHECK(kvtrace_emu_stream_synchronize(stream));
        kvtrace_emu_exec_destroy(exec);
    }
}

void many_replays() {
    Stream stream = new_stream();
    Exec exec = instantiate(capture(stream, [&] {
        for (int i = 0; i < 2; ++i) {
            launch_target(stream);
            launch_neighbour(stream);
        }
    }));
    for (int i = 0; i < 70; ++i) {
        replay(exec, stream, 1000);
        CHECK(kvtrace_emu_stream_synchronize(stream));
    }
}

/* 16 launches of 100,000 blocks in a row: the first more than the ring holds, the others as fast as
 * can be. */
void many_blocks() {
    Stream stream = new_stream();
    hold_drain();
    launch_target(stream, 100000);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    let_drain();
    for (int i = 1; i < 16; ++i) {
        launch_target(stream, 100000);
    }
}

/* Twenty times through a ring of 65,536 events, at a pace that the drain can follow. */
void slow_blocks() {
    Stream stream = new_stream();
    for (int i = 0; i < 350; ++i) {
        launch_target(stream, 4000);
        CHECK(kvtrace_emu_stream_synchronize(stream));
        wait_for_drain();
    }
}

/* More launches than a small launch table holds between two looks of the drain. */
void many_launches() {
    Stream stream = new_stream();
    for (int i = 0; i < 5000; ++i) {
        launch_target(stream);
    }
}

void two_contexts() {
    simple_graph(Between::kNeighbour, true);
    CHECK(kvtrace_emu_context_synchronize(device.context));
    device = open_device();
    simple_graph(Between::kNeighbour, false);
}

void module_loaded_again() {
    Stream stream = new_stream();
    launch_target(stream, 3);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    const char *names[] = {"probe_neighbour", "probe_target"};
    for (int i = 0; i < 5; ++i) {
        kvtrace_emu_module *module = kvtrace_emu_module_load(device.context, names, 2, 0);
        launch(stream, kvtrace_emu_get_function(module, "probe_neighbour"));
        CHECK(kvtrace_emu_stream_synchronize(stream));
        kvtrace_emu_module_unload(module);
    }
    launch_target(stream, 4);
}

/* What the target stores where; the numbers are printed with the truth. */
constexpr kvtrace_emu_cache_writes kCache = {
    nullptr, 0x7f1000000000, 0x7f1000000800, 16 * 4096, 4096, 16, 16};
constexpr uint32_t kRows = 6;
/* The KV slots that each launch of the target saw, in the order of the launches. */
std::vector<std::vector<int64_t>> kv_slots_seen;

struct Writer {
    Stream stream = new_stream();
    kvtrace_emu_slots *slots = kvtrace_emu_slots_create(device.context, kRows);

    void launch(Function function) const {
        kvtrace_emu_cache_writes writes = kCache;
        writes.slots = slots;
        CHECK(kvtrace_emu_launch_writing(stream, function, {kRows, 1, 1}, {kThreads, 1, 1}, 0,
                                         &writes));
    }
    void set(const std::vector<int64_t> &kv_slots) const {
        CHECK(kvtrace_emu_slots_set(stream, slots, kv_slots.data(),
                                    static_cast<uint32_t>(kv_slots.size())));
    }
};

/* Other slots each time; two rows without one, the last because nothing is said of it. */
std::vector<int64_t> kv_slots_of(int64_t turn) {
    return {5 * turn, 100 + turn, -1, 200 - turn, 7 * turn};
}

/* Plain launches, then a graph that is replayed with other slots each time. A neighbour that stores
 * as much runs in between. */
void stores() {
    const Writer writer;
    for (int64_t turn = 0; turn < 5; ++turn) {
        writer.set(kv_slots_of(turn));
        writer.launch(device.target);
        writer.launch(device.neighbour);
        kv_slots_seen.push_back(kv_slots_of(turn));
    }
    constexpr int nodes = 3;
    Exec exec = instantiate(capture(writer.stream, [&] {
        for (int i = 0; i < nodes; ++i) {
            writer.launch(device.target);
            writer.launch(device.neighbour);
        }
    }));
    for (int64_t turn = 5; turn < 5 + kReplays; ++turn) {
        writer.set(kv_slots_of(turn));
        replay(exec, writer.stream, 1);
        kv_slots_seen.insert(kv_slots_seen.end(), nodes, kv_slots_of(turn));
    }
}

/* Two threads, each with a stream and slots of its own. */
void stores_two_threads() {
    const auto work = [] {
        const Writer writer;
        Exec exec = instantiate(capture(writer.stream, [&] {
            writer.launch(device.target);
            writer.launch(device.neighbour);
        }));
        for (int64_t turn = 0; turn < 50; ++turn) {
            writer.set(kv_slots_of(turn));
            writer.launch(device.target);
            replay(exec, writer.stream, 1);
        }
        CHECK(kvtrace_emu_stream_synchronize(writer.stream));
    };
    std::thread one(work);
    std::thread two(work);
    one.join();
    two.join();
}

/* More stores than a small ring holds: half of them while nothing leaves it. */
void many_stores() {
    const Writer writer;
    writer.set({0, 1, 2, 3, 4, 5});
    hold_drain();
    for (int i = 0; i < 2000; ++i) {
        if (i == 1000) {
            CHECK(kvtrace_emu_stream_synchronize(writer.stream));
            let_drain();
        }
        writer.launch(device.target);
    }
}

/* A launch that no kernel could be right for is refused, and is no launch. */
void refused_writes() {
    const Writer writer;
    const auto is_refused = [&](kvtrace_emu_cache_writes writes, uint32_t blocks) {
        return kvtrace_emu_launch_writing(writer.stream, device.target, {blocks, 1, 1},
                                          {kThreads, 1, 1}, 0, &writes) != 0;
    };
    kvtrace_emu_cache_writes writes = kCache;
    bool all = is_refused(writes, 1);
    writes.slots = writer.slots;
    all = all && is_refused(writes, kRows + 1);
    writes.block_size = 0;
    all = all && is_refused(writes, 1);
    writes.block_size = 16;
    for (const uint32_t size : {0u, 3u, 32u}) {
        writes.access_size = size;
        all = all && is_refused(writes, 1);
    }
    const std::vector<int64_t> many(kRows + 1, 0);
    all = all && kvtrace_emu_slots_set(writer.stream, writer.slots, many.data(), kRows + 1) != 0;
    Exec exec = instantiate(capture(writer.stream, [&] { writer.launch(device.target); }));
    all = all && kvtrace_emu_exec_set_grid(exec, 0, {kRows + 1, 1, 1}) != 0;
    CHECK(all ? 0 : 1);
}

/* The injector's function, found as an engine plug-in finds it; NULL where it is not loaded. */
void *injector_function(const char *name) {
    const char *path = std::getenv("CUDA_INJECTION64_PATH");
    void *library = path != nullptr ? dlopen(path, RTLD_NOW) : nullptr;
    return library != nullptr ? dlsym(library, name) : nullptr;
}

void set_step(uint32_t step_stamp) {
    if (void *function = injector_function("kvtrace_set_step")) {
        reinterpret_cast<void (*)(uint32_t)>(function)(step_stamp);
    }
}

void end_recording() {
    if (void *function = injector_function("kvtrace_end_recording")) {
        reinterpret_cast<void (*)()>(function)();
    }
}

/* Plain launches and replays of threads that set a step and of one that does not. */
void step_stamps() {
    const Stream stream = new_stream();
    Exec exec = instantiate(capture(stream, [&] { launch_target(stream); }));
    launch_target(stream);
    set_step(3);
    launch_target(stream);
    replay(exec, stream, 1);
    std::thread([&] { launch_target(stream); }).join();
    std::thread([&] {
        set_step(5);
        launch_target(stream);
        replay(exec, stream, 1);
    }).join();
    std::thread([&] { replay(exec, stream, 1); }).join();
    launch_target(stream);
    set_step(0);
    replay(exec, stream, 1);
    std::thread([&] { launch_target(stream); }).join();
}

/* The file that the launcher writes; the injector has looked at it when this returns. */
void set_switch(uint64_t turn) {
    const char *path = std::getenv("KVTRACE_TEST_SWITCH");
    std::FILE *file = std::fopen(path != nullptr ? path : "", "r+b");
    CHECK(file == nullptr || std::fwrite(&turn, sizeof(turn), 1, file) != 1 ? 1 : 0);
    std::fclose(file);
    wait_for_drain();
}

/* Five turns of the same launches, of which every second is let pass; nothing waits for them. */
void switched() {
    const Stream stream = new_stream();
    launch_target(stream);
    Exec bare = captured_body(stream, Between::kNothing, true);
    Exec mixed = captured_body(stream, Between::kMemset, true);
    for (uint64_t turn = 0; turn < 5; ++turn) {
        set_switch(turn);
        launch_target(stream, 3);
        launch_neighbour(stream);
        replay(bare, stream, 2);
        launch(stream, device.target_b, 2);
        replay(mixed, stream, 1);
        std::thread([&] { replay(bare, stream, 1); }).join();
    }
}

/* Runs until it is killed. */
void endless() {
    Stream stream = new_stream();
    Exec exec = captured_body(stream, Between::kNeighbour, true);
    std::printf("ready\n");
    std::fflush(stdout);
    while (true) {
        launch_target(stream, 100);
        replay(exec, stream, 1);
        CHECK(kvtrace_emu_stream_synchronize(stream));
    }
}

uint64_t target_blocks() {
    return kvtrace_emu_blocks_run(device.target) + kvtrace_emu_blocks_run(device.target_b) +
           kvtrace_emu_blocks_run(graph_only_target());
}

/* As JSON: a list of KV slots for each launch. */
std::string kv_slots_text() {
    std::string text = "[";
    for (const std::vector<int64_t> &kv_slots : kv_slots_seen) {
        text += text.size() > 1 ? ", [" : "[";
        for (size_t row = 0; row < kv_slots.size(); ++row) {
            text += (row > 0 ? ", " : "") + std::to_string(kv_slots[row]);
        }
        text += "]";
    }
    return text + "]";
}

void print_truth(const char *name, uint64_t blocks) {
    std::printf("{\"case\": \"%s\", \"target_blocks\": %llu, \"neighbour_blocks\": %llu, "
                "\"key_address\": %llu, \"value_address\": %llu, \"block_stride\": %llu, "
                "\"offset_stride\": %llu, \"block_size\": %u, \"kv_slots\": %s}\n",
                name, static_cast<unsigned long long>(blocks),
                static_cast<unsigned long long>(kvtrace_emu_blocks_run(device.neighbour)),
                static_cast<unsigned long long>(kCache.key_address),
                static_cast<unsigned long long>(kCache.value_address),
                static_cast<unsigned long long>(kCache.block_stride),
                static_cast<unsigned long long>(kCache.offset_stride), kCache.block_size,
                kv_slots_text().c_str());
    std::fflush(stdout);
}

/* What a process that records does at its end: the common work, the truth, then its own way. */
void work_and_say(const char *name) {
    Stream stream = new_stream();
    launch_target(stream, 5);
    replay(captured_body(stream, Between::kNeighbour, true), stream);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    print_truth(name, target_blocks());
}

/* Time for launches of another thread, and for the drain to meet them. */
void let_it_work() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

void end_by_exit() {
    work_and_say("end_by_exit");
    std::exit(0);
}

void end_at_once() {
    work_and_say("end_at_once");
    wait_for_drain();
    _exit(0);
}

void end_context_first() {
    work_and_say("end_context_first");
    kvtrace_emu_context_destroy(device.context);
    std::exit(0);
}

void end_by_thread() {
    work_and_say("end_by_thread");
    std::thread([] { std::exit(0); }).join();
}

void end_by_signal() {
    work_and_say("end_by_signal");
    wait_for_drain();
    std::raise(SIGTERM);
}

/* Streams of other threads still launch while the process exits. */
void end_while_busy() {
    work_and_say("end_while_busy");
    std::thread([] {
        Stream stream = new_stream();
        while (true) {
            launch_target(stream, 10);
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
    }).detach();
    let_it_work();
    std::exit(0);
}

/* Asked for by several threads at once, and once more. */
void end_from_threads() {
    std::thread one(end_recording);
    std::thread two(end_recording);
    end_recording();
    one.join();
    two.join();
    end_recording();
}

/* No exit handler runs. */
void end_asked() {
    work_and_say("end_asked");
    end_from_threads();
    _exit(0);
}

/* The exit handler runs, and finds nothing left to do. A kernel that nobody records is no launch
 * after the end. */
void end_asked_then_exit() {
    work_and_say("end_asked_then_exit");
    end_recording();
    Stream stream = new_stream();
    launch_neighbour(stream);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    kvtrace_emu_context_destroy(device.context);
    std::exit(0);
}

/* More blocks than a ring holds, plain and by a graph, in the old context and in a new one. */
void launch_after_end() {
    work_and_say("launch_after_end");
    end_from_threads();
    for (int i = 0; i < 2; ++i) {
        Stream stream = new_stream();
        launch_target(stream, 100000);
        std::thread([&] { launch_target(stream, 100000); }).join();
        replay(captured_body(stream, Between::kNeighbour, true), stream);
        CHECK(kvtrace_emu_stream_synchronize(stream));
        end_recording();
        kvtrace_emu_context_destroy(device.context);
        device = open_device();
    }
    std::exit(0);
}

void end_asked_while_busy() {
    work_and_say("end_asked_while_busy");
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        Stream stream = new_stream();
        while (!stop) {
            launch_target(stream, 10);
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        CHECK(kvtrace_emu_stream_synchronize(stream));
    });
    let_it_work();
    end_recording();
    let_it_work();
    stop = true;
    busy.join();
    _exit(0);
}

/* What a child ends is never its parent's recording. */
void end_in_forked_child() {
    Stream stream = new_stream();
    launch_target(stream, 5);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    const pid_t child = fork();
    if (child == 0) {
        end_recording();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    work_and_say("end_in_forked_child");
    std::exit(WEXITSTATUS(status));
}

/* A forked child goes on as if nothing recorded; its launches are none of the recording's. */
void forked_child() {
    work_and_say("forked_child");
    const pid_t child = fork();
    if (child == 0) {
        device = open_device();
        Stream stream = new_stream();
        launch_target(stream, 1000);
        const int error = kvtrace_emu_stream_synchronize(stream);
        std::exit(error == 0 && kvtrace_emu_blocks_run(device.target) == 1000 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::exit(WEXITSTATUS(status));
}

/* A spawned child inherits the environment, but never uses the GPU. */
void spawned_child() {
    work_and_say("spawned_child");
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "emulator_cases", "no_context", nullptr);
        _exit(1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::exit(WEXITSTATUS(status));
}

void no_context() { std::exit(kvtrace_emu_init()); }

void step_without_context() {
    set_step(1);
    std::exit(kvtrace_emu_init());
}

void end_without_context() {
    end_recording();
    const int error = kvtrace_emu_init();
    end_recording();
    std::exit(error);
}

/* What was ended before there is anything to end is not ended. */
void end_before_context() {
    end_recording();
    CHECK(kvtrace_emu_init());
    end_recording();
    device = open_device();
    end_by_exit();
}

/* The step is set before there is a device, and counts for what is launched then. */
void step_before_context() {
    set_step(4);
    device = open_device();
    Stream stream = new_stream();
    launch_target(stream);
    CHECK(kvtrace_emu_stream_synchronize(stream));
    print_truth("step_before_context", target_blocks());
    std::exit(0);
}

const std::map<std::string, std::function<void()>> kCases = {
    {"plain", plain},
    {"plain_and_graph", plain_and_graph},
    {"alone", [] { simple_graph(Between::kNothing, true); }},
    {"neighbour_last", [] { simple_graph(Between::kNeighbour, false); }},
    {"target_last", [] { simple_graph(Between::kNeighbour, true); }},
    {"other_module", [] { simple_graph(Between::kOther, false); }},
    {"memset_nodes", [] { simple_graph(Between::kMemset, false); }},
    {"two_targets", two_targets},
    {"graph_only", graph_only},
    {"streams_2", [] { streams(2); }},
    {"streams_4", [] { streams(4); }},
    {"streams_16", [] { streams(16); }},
    {"two_threads", two_threads},
    {"two_execs", two_execs},
    {"child_graphs", child_graphs},
    {"upload", upload},
    {"conditional", conditional},
    {"disabled", disabled},
    {"changed_parameters", changed_parameters},
    {"recreated", recreated},
    {"many_replays", many_replays},
    {"many_blocks", many_blocks},
    {"slow_blocks", slow_blocks},
    {"many_launches", many_launches},
    {"two_contexts", two_contexts},
    {"module_loaded_again", module_loaded_again},
    {"stores", stores},
    {"stores_two_threads", stores_two_threads},
    {"many_stores", many_stores},
    {"refused_writes", refused_writes},
    {"step_stamps", step_stamps},
    {"switched", switched},
};

/* These print the truth themselves and never return. */
const std::map<std::string, std::function<void()>> kEndings = {
    {"endless", endless},
    {"end_by_exit", end_by_exit},
    {"end_at_once", end_at_once},
    {"end_context_first", end_context_first},
    {"end_by_thread", end_by_thread},
    {"end_by_signal", end_by_signal},
    {"end_while_busy", end_while_busy},
    {"end_asked", end_asked},
    {"end_asked_then_exit", end_asked_then_exit},
    {"launch_after_end", launch_after_end},
    {"end_asked_while_busy", end_asked_while_busy},
    {"end_in_forked_child", end_in_forked_child},
    {"forked_child", forked_child},
    {"spawned_child", spawned_child},
};

/* These make their context themselves, or none, and never return. */
const std::map<std::string, std::function<void()>> kWithoutContext = {
    {"no_context", no_context},
    {"step_without_context", step_without_context},
    {"end_without_context", end_without_context},
    {"end_before_context", end_before_context},
    {"step_before_context", step_before_context},
};

} // namespace

int main(int argc, char **argv) {
    const std::string name = argc == 2 ? argv[1] : "";
    if (const auto early = kWithoutContext.find(name); early != kWithoutContext.end()) {
        early->second();
    }
    const auto found = kCases.find(name);
    const auto ending = kEndings.find(name);
    if (found == kCases.end() && ending == kEndings.end()) {
        for (const auto &[known, run] : kCases) {
            std::fprintf(stderr, "%s\n", known.c_str());
        }
        return 2;
    }
    const Device first = device = open_device();
    if (ending != kEndings.end()) {
        ending->second();
    }
    found->second();
    CHECK(kvtrace_emu_context_synchronize(device.context));
    uint64_t blocks = target_blocks();
    if (first.context != device.context) {
        blocks += kvtrace_emu_blocks_run(first.target);
    }
    print_truth(argv[1], blocks);
    return 0;
}
