/* The toy driver's objects. Handles that the injector sees are the addresses of these. */
#ifndef KVTRACE_EMULATOR_DRIVER_H
#define KVTRACE_EMULATOR_DRIVER_H

#include <sanitizer.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "kvtrace_emulator_decl.h"
}

/* What an unbound function of a patched module reads as its data when a graph replays it. */
constexpr uintptr_t kGarbagePointer = 0x7f00deadbeefu;

/* Bits of a module's patches. */
constexpr uint32_t kPatchBlockEnter = 1;
constexpr uint32_t kPatchGlobalAccess = 2;
constexpr uint32_t kPatchNoOp = 4;
/* Of the lifetime matrix: ../lifetime/callbacks.h. */
constexpr uint32_t kPatchPointerRead = 8;
constexpr uint32_t kPatchCounter = 16;
/* These follow the pointer that they are given. */
constexpr uint32_t kFollowingPatches = kPatchBlockEnter | kPatchGlobalAccess | kPatchCounter;

/* A slot mapping in device memory: read by running blocks, written by queued copies. */
struct kvtrace_emu_slots {
    explicit kvtrace_emu_slots(uint32_t capacity) : kv_slots(capacity) {
        for (std::atomic<int64_t> &kv_slot : kv_slots) {
            kv_slot.store(-1, std::memory_order_relaxed);
        }
    }
    std::vector<std::atomic<int64_t>> kv_slots;
};

struct kvtrace_emu_context {
    int device = 0;
    std::atomic<int> error{0};
    std::unique_ptr<kvtrace_emu_stream> default_stream;
    std::mutex mutex;
    std::vector<std::unique_ptr<kvtrace_emu_module>> modules;
    std::vector<std::unique_ptr<kvtrace_emu_stream>> streams;
    std::vector<std::unique_ptr<char[]>> allocations;
    std::vector<std::unique_ptr<kvtrace_emu_slots>> slots;
    bool patches_loaded = false;
};

struct kvtrace_emu_function {
    std::string name;
    kvtrace_emu_module *module = nullptr;
    bool is_loaded = false;
    std::atomic<bool> is_bound{false};
    std::atomic<const void *> data{nullptr};
    std::atomic<uint64_t> blocks_run{0};
    uint64_t pc = 0;
};

struct kvtrace_emu_module {
    kvtrace_emu_context *context = nullptr;
    std::string image;
    std::vector<std::unique_ptr<kvtrace_emu_function>> functions;
    /* Asked for by sanitizerPatchInstructions; in force from sanitizerPatchModule on. */
    uint32_t marked_patches = 0;
    std::atomic<uint32_t> patches{0};
};

/* A queue of work, done in order by a thread of its own. */
struct kvtrace_emu_stream {
    explicit kvtrace_emu_stream(kvtrace_emu_context *owner);
    ~kvtrace_emu_stream();
    void push(std::function<void()> work);
    void wait_idle();

    kvtrace_emu_context *context;
    /* Other threads that end a capture look at it too. */
    std::atomic<kvtrace_emu_graph *> capturing{nullptr};
    /* What the next captured node waits for. */
    std::vector<int> last_nodes;

  private:
    void run();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool is_busy_ = false;
    bool is_stopping_ = false;
    std::thread thread_;
};

namespace kvtrace_emu {

enum class NodeKind { kKernel, kMemset, kChild, kConditional };

struct Kernel {
    kvtrace_emu_function *function = nullptr;
    kvtrace_emu_dim grid = {1, 1, 1};
    kvtrace_emu_dim block = {1, 1, 1};
    uint32_t block_ns = 0;
    /* No slots: the kernel writes no cache. */
    kvtrace_emu_cache_writes writes = {};

    bool has_slots_for(kvtrace_emu_dim wanted) const {
        return writes.slots == nullptr || wanted.x <= writes.slots->kv_slots.size();
    }
};

struct Node {
    NodeKind kind = NodeKind::kKernel;
    Kernel kernel;
    kvtrace_emu_graph *child = nullptr;
    std::vector<int> after;
};

/* One node of an exec: child graphs are flattened, each embedding with nodes of its own. */
struct ExecNode {
    NodeKind kind = NodeKind::kKernel;
    Kernel kernel;
    uint64_t grid_id = 0;
    bool is_enabled = true;
    bool is_conditional_body = false;
    std::vector<uint32_t> next;
    uint32_t before = 0;
    /* Data bound to this launch of the node through its launch handle. A plain launch has a node of
     * its own for as long as it is being submitted. */
    const void *launch_data = nullptr;
    bool has_launch_data = false;
};

uint64_t next_grid_id();
void set_error(kvtrace_emu_context *context, int error);
/* The code that a launch of the kernel runs: its module's, as it is patched now. */
uint32_t patches_of(const Kernel &kernel);
/* Run all blocks of a grid here; returns false if the context has a fault now. */
bool run_grid(const Kernel &kernel, uint32_t patches, uint64_t grid_id, const void *data);
/* Ask the subscriber. */
void call_back(Sanitizer_CallbackDomain domain, uint32_t id, const void *data);
/* The same of what was not enabled. */
void call_back_unasked(Sanitizer_CallbackDomain domain, uint32_t id, const void *data);
Sanitizer_LaunchData describe(const Kernel &kernel, uint64_t grid_id, kvtrace_emu_stream *stream);

template <typename Handle, typename Object> Handle as(Object *object) {
    return reinterpret_cast<Handle>(object);
}

} // namespace kvtrace_emu

struct kvtrace_emu_graph {
    std::vector<kvtrace_emu::Node> nodes;
};

struct kvtrace_emu_exec {
    kvtrace_emu_context *context = nullptr;
    std::vector<std::unique_ptr<kvtrace_emu::ExecNode>> nodes;
    uint32_t launch_count = 0;
    bool has_only_kernels = true;
};

#endif
