#include "drain.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "clock.h"
#include "failure.h"

namespace kvtrace {
namespace {

constexpr uint32_t kShortestSleepUs = 100;
/* At an orderly end events may still be on the bus: look until nothing new comes for this long and
 * no hole keeps back what stands behind it. */
constexpr uint64_t kQuietNs = 5000000;
constexpr uint64_t kLongestEndNs = 2000000000;

enum class Phase { kNotStarted, kRunning, kEnding, kEnded };

pthread_t drain_thread;
std::atomic<bool> stop_requested{false};
std::atomic<Phase> phase{Phase::kNotStarted};

void sleep_us(uint32_t microseconds) {
    timespec time = {static_cast<time_t>(microseconds / 1000000),
                     static_cast<long>(microseconds % 1000000) * 1000};
    nanosleep(&time, nullptr);
}

template <typename Ring>
void consume_all(Ring *ring, RecordFile *file, size_t count, const void *first) {
    /* A write that fails is recorded once; the ring keeps moving so that the device never sees a
     * full ring for our disk's sake, and the header's record_count tells what is missing. */
    if (!file->append(first, count)) {
        record_failure(KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), "append records");
    }
    ring->consume(count);
}

void publish(RecordFile *file, uint64_t dropped_count) {
    const Failure failure = first_failure();
    file->set_failure(failure.site, failure.result);
    file->set_dropped(dropped_count);
    file->write_header();
}

size_t drain_events(Context *context) {
    size_t total = 0;
    const kvtrace_block_event *first = nullptr;
    while (const size_t count = context->ring.peek(&first, host_monotonic_ns())) {
        consume_all(&context->ring, &context->file, count, first);
        total += count;
    }
    if (context->has_target.load(std::memory_order_relaxed)) {
        context->file.add_flags(KVTRACE_FILE_PATCHED);
    }
    publish(&context->file, context->ring.dropped_count());
    return total;
}

/* Visit the context if its ring is still there, and keep the ring for that long. */
template <typename Visit> void visit_recording(Context *context, Visit visit) {
    if (context->state.load(std::memory_order_acquire) != Context::State::kReady) {
        return;
    }
    const std::lock_guard<std::mutex> lock(context->drain_mutex);
    if (context->ring.is_attached()) {
        visit(context);
    }
}

template <typename Visit> void visit_all_recording(Injector *self, Visit visit) {
    const uint32_t count =
        std::min(self->context_count.load(std::memory_order_acquire), kMaxContexts);
    for (uint32_t i = 0; i < count; ++i) {
        visit_recording(&self->contexts[i], visit);
    }
}

size_t drain_launches(Injector *self) {
    size_t total = 0;
    const kvtrace_launch_record *first = nullptr;
    while (const size_t count = self->launches.peek(&first)) {
        consume_all(&self->launches, &self->launch_file, count, first);
        total += count;
    }
    self->launch_file.add_flags(self->process_flags.load(std::memory_order_relaxed));
    publish(&self->launch_file, self->launches.dropped_count());
    return total;
}

size_t drain_once(Injector *self) {
    /* Launches first: a reader of a file cut off by SIGKILL then finds the launch of nearly every
     * event. */
    size_t total = drain_launches(self);
    visit_all_recording(self, [&total](Context *context) { total += drain_events(context); });
    return total;
}

void follow_switch(Injector *self) {
    RecordingSwitch *asked = &self->recording_switch;
    if (asked->follow()) {
        JournalLine line("recording_switched");
        line.add("turn", asked->turn()).add("recording", !asked->is_off());
        line.add("launches_passed", asked->launches_passed());
        self->journal.write(line.add("blocks_passed", asked->blocks_passed()));
    }
}

void *drain_loop(void *argument) {
    Injector *self = static_cast<Injector *>(argument);
    const uint32_t longest = std::max(self->config.drain_interval_us, kShortestSleepUs);
    uint32_t pause = kShortestSleepUs;
    while (!stop_requested.load(std::memory_order_acquire)) {
        follow_switch(self);
        pause = drain_once(self) > 0 ? kShortestSleepUs : std::min(pause * 2, longest);
        sleep_us(pause);
    }
    return nullptr;
}

/* Call `drain` until it finds nothing any more; `is_waiting` says that more is known to come. */
template <typename Drain, typename IsWaiting>
void drain_until_quiet(Drain drain, IsWaiting is_waiting) {
    const uint64_t begin = host_monotonic_ns();
    uint64_t last_seen = begin;
    uint64_t now = begin;
    while ((now - last_seen < kQuietNs || is_waiting()) && now - begin < kLongestEndNs) {
        if (drain() > 0) {
            last_seen = now;
        }
        sleep_us(kShortestSleepUs);
        now = host_monotonic_ns();
    }
}

bool any_ring_waits(Injector *self) {
    bool waits = false;
    visit_all_recording(self, [&waits](const Context *context) {
        waits = waits || context->ring.is_waiting_for_hole();
    });
    return waits;
}

void close_events(Injector *self, Context *context, const char *reason) {
    JournalLine line("ended");
    line.add("reason", reason).add("context_index", static_cast<uint64_t>(context->index));
    line.add("events_written", context->file.record_count());
    line.add("events_dropped", context->ring.dropped_count());
    line.add("stores_dropped", context->ring.dropped_store_count());
    self->journal.write(line.add("holes_skipped", context->ring.holes_skipped()));
    context->file.add_flags(KVTRACE_FILE_CLOSED);
    publish(&context->file, context->ring.dropped_count());
    context->ring.detach();
}

void close_launches(Injector *self) {
    JournalLine line("launches_ended");
    line.add("launches_written", self->launch_file.record_count());
    line.add("launches_dropped", self->launches.dropped_count());
    line.add("blocks_of_dropped", self->launches.dropped_blocks());
    if (self->has_flag(KVTRACE_CONFIG_SWITCHED)) {
        line.add("launches_passed", self->recording_switch.launches_passed());
        line.add("blocks_passed", self->recording_switch.blocks_passed());
    }
    self->journal.write(line);
    self->launch_file.add_flags(KVTRACE_FILE_CLOSED);
    publish(&self->launch_file, self->launches.dropped_count());
}

/* Whoever sees both bits first calls this, so it is called once. */
void take_back_end(Injector *self) {
    self->launch_file.remove_flags(KVTRACE_FILE_CLOSED);
    self->launch_file.write_header();
    JournalLine line("launched_after_end");
    self->journal.write(line);
}

void drain_and_close(Injector *self, const char *reason) {
    stop_requested.store(true, std::memory_order_release);
    pthread_join(drain_thread, nullptr);
    drain_until_quiet([self] { return drain_once(self); }, [self] { return any_ring_waits(self); });
    /* A launch that does not see this bit is in the ring by now. */
    self->end_state.fetch_or(kEndBegun, std::memory_order_acq_rel);
    drain_launches(self);
    visit_all_recording(self, [=](Context *context) { close_events(self, context, reason); });
    close_launches(self);
    const uint32_t before = self->end_state.fetch_or(kFilesClosed, std::memory_order_acq_rel);
    if ((before & kLaunchedAfterEnd) != 0) {
        take_back_end(self);
    }
}

/* Once a process. Who comes second waits for the first: a process that exits must not cut short
 * what another thread of it is closing. */
void end_recording(const char *reason) {
    Injector *self = injector();
    if (self == nullptr || !records_here()) {
        return;
    }
    Phase expected = Phase::kRunning;
    if (phase.compare_exchange_strong(expected, Phase::kEnding)) {
        drain_and_close(self, reason);
        phase.store(Phase::kEnded, std::memory_order_release);
        return;
    }
    const uint64_t begin = host_monotonic_ns();
    while (phase.load(std::memory_order_acquire) == Phase::kEnding &&
           host_monotonic_ns() - begin < 2 * kLongestEndNs) {
        sleep_us(kShortestSleepUs);
    }
}

/* Runs before the driver's own exit handlers, since it was registered after them: the mapped
 * memory is still there. */
void end_of_process() { end_recording("exit"); }

bool create_thread(Injector *self) {
    /* The engine's signals are the engine's business. */
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int result = pthread_create(&drain_thread, nullptr, drain_loop, self);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (result != 0) {
        record_failure(KVTRACE_SITE_START_THREAD, static_cast<uint32_t>(result), "drain thread");
        return false;
    }
    pthread_setname_np(drain_thread, "kvtrace-drain");
    return true;
}

} // namespace

bool start_drain(Injector *self) {
    if (!create_thread(self)) {
        return false;
    }
    phase.store(Phase::kRunning, std::memory_order_release);
    std::atexit(end_of_process);
    return true;
}

void close_context(Injector *self, Context *context) {
    visit_recording(context, [self](Context *ending) {
        drain_until_quiet([ending] { return drain_events(ending); },
                          [ending] { return ending->ring.is_waiting_for_hole(); });
        close_events(self, ending, "context destroyed");
        ending->state.store(Context::State::kDestroyed, std::memory_order_release);
    });
}

bool has_ended(const Injector &self) {
    return (self.end_state.load(std::memory_order_acquire) & kEndBegun) != 0;
}

void launch_appended(Injector *self) {
    /* Not a load: either the end's own change comes later and it then finds the record in the ring,
     * or it is seen here. */
    const uint32_t seen = self->end_state.fetch_or(0, std::memory_order_acq_rel);
    if ((seen & kEndBegun) == 0 || (seen & kLaunchedAfterEnd) != 0) {
        return;
    }
    const uint32_t before = self->end_state.fetch_or(kLaunchedAfterEnd, std::memory_order_acq_rel);
    if ((before & (kLaunchedAfterEnd | kFilesClosed)) == kFilesClosed) {
        take_back_end(self);
    }
}

} // namespace kvtrace

void kvtrace_end_recording(void) noexcept {
    try {
        kvtrace::end_recording("asked");
    } catch (...) {
        kvtrace::record_failure(KVTRACE_SITE_EXCEPTION, 0, "kvtrace_end_recording");
    }
}
