/*
 * The state of the injector in this process. It is made once, leaked on purpose and never
 * destroyed: the driver and late threads call back while the process exits.
 */
#ifndef KVTRACE_INJECTOR_H
#define KVTRACE_INJECTOR_H

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "event_ring.h"
#include "handle_table.h"
#include "journal.h"
#include "launch_ring.h"
#include "record_file.h"
#include "recording_switch.h"
#include "sanitizer_api.h"

namespace kvtrace {

constexpr uint32_t kMaxContexts = 64;
/* Target functions of the process that can be told apart; each has callback data in each context.
 */
constexpr uint32_t kMaxKernelSlots = 256;

/* How far the end of the recording is, as bits: launches and the end see each other's in one
 * atomic.
 */
enum EndState : uint32_t { kEndBegun = 1, kFilesClosed = 2, kLaunchedAfterEnd = 4 };

/* One CUDA context that we record. Its memory is the driver's and goes with the context. */
struct Context {
    enum class State { kUnused, kPreparing, kReady, kFailed, kDestroyed };
    std::atomic<State> state{State::kUnused};
    CUcontext handle = nullptr;
    uint32_t index = 0;
    /* Device memory: kMaxKernelSlots records by kernel slot, then one for each launch stamp. */
    kvtrace_callback_data *callback_data = nullptr;
    bool patches_added = false;
    std::atomic<bool> has_target{false};
    /* Guards ring and file between the drain thread and the end of the context. */
    std::mutex drain_mutex;
    EventRing ring;
    RecordFile file;

    const kvtrace_callback_data *for_kernel_slot(uint32_t slot) const {
        return callback_data + slot;
    }
    const kvtrace_callback_data *for_stamp(uint32_t stamp) const {
        return callback_data + kMaxKernelSlots + stamp;
    }
    /* With it the device callback returns at once. */
    const kvtrace_callback_data *for_nothing() const { return for_stamp(0); }
};

/* A module with a target that is to be patched once a target was launched. */
struct WaitingModule {
    Context *context = nullptr;
    /* Loaded so far: all of them are bound when the module is patched. */
    std::vector<CUfunction> functions;
};

struct Injector {
    SanitizerApi api;
    kvtrace_config config = {};
    Journal journal;
    char loaded_by[32] = {};
    /* All callbacks are enabled: with some of them a module could be patched but not bound. */
    std::atomic<bool> is_subscribed{false};

    std::mutex setup_mutex;
    bool is_set_up = false;

    Context contexts[kMaxContexts];
    std::atomic<uint32_t> context_count{0};

    HandleTable functions;
    std::atomic<uint32_t> kernel_slot_count{0};
    /* Serialises the patching calls, which the API asks of us; waited for at most seconds. */
    std::timed_mutex patch_mutex;
    std::mutex module_mutex;
    std::unordered_map<CUmodule, Context *> patched_modules;
    std::unordered_map<CUmodule, WaitingModule> waiting_modules;

    LaunchRing launches;
    RecordFile launch_file;
    RecordingSwitch recording_switch;
    std::atomic<uint32_t> process_flags{0};
    std::atomic<uint32_t> end_state{0};

    std::mutex graph_mutex;
    std::unordered_map<CUgraphExec, uint32_t> graph_generations;
    uint32_t last_generation = 0;
    std::atomic<uint32_t> last_stamp{0};
    std::atomic<bool> stamps_off{false};

    bool has_flag(uint32_t flag) const { return (config.flags & flag) != 0; }
    /* False in the arms that measure cost: blocks of a patched function leave no event then. */
    bool records_blocks() const {
        return !has_flag(KVTRACE_CONFIG_NO_PATCH) && !has_flag(KVTRACE_CONFIG_NO_OP_PATCH);
    }
};

/* The one injector, or NULL before it was set up. */
Injector *injector();
void publish_injector(Injector *made);

/* False in a forked child of the recording process, which inherits all state but no drain thread.
 */
bool records_here();
void stop_recording_in_forked_child();

} // namespace kvtrace

#endif
