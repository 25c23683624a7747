#include "recorder.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "activity_config.h"
#include "activity_records.h"
#include "buffer_pool.h"
#include "clock.h"
#include "cupti_api.h"
#include "journal.h"
#include "names_file.h"
#include "record_file.h"

namespace kvtrace {
namespace {

constexpr long kPauseNs = 2000000;
constexpr uint64_t kNsPerMs = 1000000;
constexpr uint64_t kLongestEndNs = 10000000000;
constexpr size_t kRecordsPerWrite = 1024;
/* A failure that repeats on every buffer must not fill the disk. */
constexpr uint32_t kMostFailures = 100;

enum class Phase { kIdle, kRunning, kEnding, kEnded };

struct Recorder {
    CuptiApi api;
    kvtrace_activity_config config = {};
    BufferPool pool;

    std::once_flag thread_made;
    pthread_t thread = {};
    std::atomic<bool> has_thread{false};
    std::atomic<bool> stop_requested{false};
    std::atomic<Phase> phase{Phase::kIdle};

    /* From here on the writer's, whoever that is at the time. */
    bool has_files = false;
    bool cannot_write = false;
    Journal journal;
    RecordFile file;
    NamesFile names;
    uint64_t dropped_count = 0;
    uint64_t without_times = 0;
    uint32_t failure_count = 0;
    kvtrace_activity_record records[kRecordsPerWrite] = {};
    size_t record_count = 0;
};

std::atomic<Recorder *> the_recorder{nullptr};
std::atomic<bool> is_forked_child{false};

/* NULL in a forked child, which inherits all state but no writer. */
Recorder *recorder() {
    return is_forked_child.load(std::memory_order_relaxed)
               ? nullptr
               : the_recorder.load(std::memory_order_acquire);
}

void leave_to_parent() { is_forked_child.store(true, std::memory_order_relaxed); }

void raw_path(const Recorder &self, const char *suffix, char *path, size_t path_size) {
    std::snprintf(path, path_size, "%s/%d%s", self.config.output_dir, static_cast<int>(getpid()),
                  suffix);
}

bool create_journal(Recorder *self) {
    char path[KVTRACE_PATH_BYTES + 64];
    raw_path(*self, ".journal.jsonl", path, sizeof(path));
    return self->journal.create(path);
}

/* Of the first hundred. */
void journal_failure(Recorder *self, kvtrace_failure_site site, uint32_t result,
                     const char *detail) {
    if (self->failure_count < kMostFailures) {
        ++self->failure_count;
        JournalLine line("failure");
        line.add("site", static_cast<uint64_t>(site)).add("result", static_cast<uint64_t>(result));
        self->journal.write(line.add("detail", detail));
    }
}

/* The first is in the header too. */
void record_failure(Recorder *self, kvtrace_failure_site site, uint32_t result,
                    const char *detail) {
    if (self->failure_count == 0) {
        self->file.set_failure(site, result);
    }
    journal_failure(self, site, result, detail);
}

bool create_records_and_names(Recorder *self) {
    char path[KVTRACE_PATH_BYTES + 64];
    raw_path(*self, ".activity.names", path, sizeof(path));
    if (!self->names.create(path)) {
        return false;
    }
    kvtrace_file_header header = {};
    header.magic = KVTRACE_ACTIVITIES_MAGIC;
    header.abi_version = KVTRACE_ABI_VERSION;
    header.record_size = sizeof(kvtrace_activity_record);
    header.capacity = self->config.buffer_count;
    header.process_id = static_cast<uint32_t>(getpid());
    raw_path(*self, ".activity.kva", path, sizeof(path));
    return self->file.create(path, header);
}

/* At the first record, so that a process that only asks for the number of GPUs leaves no file. */
void demand_files(Recorder *self) {
    if (self->has_files) {
        return;
    }
    self->has_files = true;
    if (create_journal(self)) {
        JournalLine line("attached");
        line.add("observer", "cupti");
        line.add("abi_version", static_cast<uint64_t>(KVTRACE_ABI_VERSION));
        line.add("process_id", static_cast<uint64_t>(getpid()));
        line.add("cupti_version", static_cast<uint64_t>(self->api.version));
        self->journal.write(line.add("cupti_library", self->config.cupti_library));
    }
    if (!create_records_and_names(self)) {
        self->cannot_write = true;
        record_failure(self, KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), "create files");
    }
}

void write_records(Recorder *self) {
    if (self->record_count > 0 && !self->cannot_write &&
        !self->file.append(self->records, self->record_count)) {
        self->cannot_write = true;
        record_failure(self, KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno),
                       "append records");
    }
    if (self->cannot_write) {
        self->dropped_count += self->record_count;
    }
    self->record_count = 0;
}

void add_record(Recorder *self, const CUpti_Activity *activity) {
    kvtrace_activity_record *record = &self->records[self->record_count];
    const char *name = nullptr;
    if (!convert(activity, record, &name)) {
        return;
    }
    demand_files(self);
    record->name_id = KVTRACE_ACTIVITY_NO_NAME;
    if (name != nullptr && !self->cannot_write && !self->names.line_of(name, &record->name_id)) {
        self->cannot_write = true;
        record_failure(self, KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), "append name");
    }
    if (record->gpu_cupti_begin_ns == 0 || record->gpu_cupti_end_ns == 0) {
        ++self->without_times;
    }
    if (++self->record_count == kRecordsPerWrite) {
        write_records(self);
    }
}

void write_buffer(Recorder *self, const BufferPool::Filled &filled) {
    CUpti_Activity *activity = nullptr;
    CUptiResult result = CUPTI_SUCCESS;
    while (filled.valid_bytes > 0 &&
           (result = self->api.next_record(filled.buffer, filled.valid_bytes, &activity)) ==
               CUPTI_SUCCESS) {
        add_record(self, activity);
    }
    if (result != CUPTI_SUCCESS && result != CUPTI_ERROR_MAX_LIMIT_REACHED) {
        /* What follows in the buffer cannot be read, and nobody knows how much that is. */
        demand_files(self);
        record_failure(self, KVTRACE_SITE_READ_ACTIVITY, static_cast<uint32_t>(result),
                       "cuptiActivityGetNextRecord");
    }
}

void count_dropped(Recorder *self) {
    size_t dropped = 0;
    if (self->api.dropped_records(nullptr, 0, &dropped) == CUPTI_SUCCESS) {
        self->dropped_count += dropped;
    }
}

void write_filled(Recorder *self) {
    BufferPool::Filled filled;
    bool any = false;
    while (self->pool.next_filled(&filled)) {
        write_buffer(self, filled);
        self->pool.give_back(filled.buffer);
        any = true;
    }
    if (!any) {
        return;
    }
    write_records(self);
    count_dropped(self);
    if (self->has_files) {
        self->file.set_dropped(self->dropped_count);
        self->file.write_header();
    }
}

void pause() {
    const timespec time = {0, kPauseNs};
    nanosleep(&time, nullptr);
}

void *write_loop(void *argument) {
    Recorder *self = static_cast<Recorder *>(argument);
    const uint64_t period = self->config.flush_period_ms * kNsPerMs;
    uint64_t last_flush = host_monotonic_ns();
    while (!self->stop_requested.load(std::memory_order_acquire)) {
        write_filled(self);
        /* CUPTI's own periodic flush returns full buffers only. */
        if (host_monotonic_ns() - last_flush >= period) {
            self->api.flush_all(0);
            last_flush = host_monotonic_ns();
        }
        pause();
    }
    return nullptr;
}

void *write_loop_guarded(void *argument) {
    try {
        return write_loop(argument);
    } catch (...) {
        record_failure(static_cast<Recorder *>(argument), KVTRACE_SITE_EXCEPTION, 0, "writer");
        return nullptr;
    }
}

/* At the first buffer: a process that never runs anything has no thread of ours. */
void start_thread(Recorder *self) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    /* The engine's signals are the engine's business. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&self->thread, nullptr, write_loop_guarded, self) == 0) {
        pthread_setname_np(self->thread, "kvtrace-cupti");
        self->has_thread.store(true, std::memory_order_release);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CUPTIAPI buffer_requested(uint8_t **buffer, size_t *size, size_t *most_records) {
    *buffer = nullptr;
    *size = 0;
    *most_records = 0;
    Recorder *self = recorder();
    /* Without a buffer CUPTI drops records and counts them. */
    if (self == nullptr || self->phase.load(std::memory_order_acquire) == Phase::kEnded) {
        return;
    }
    try {
        std::call_once(self->thread_made, start_thread, self);
        *buffer = self->pool.take();
        *size = *buffer != nullptr ? self->pool.buffer_bytes() : 0;
    } catch (...) {
        *buffer = nullptr;
        *size = 0;
    }
}

void CUPTIAPI buffer_completed(CUcontext /*context*/, uint32_t /*stream*/, uint8_t *buffer,
                               size_t /*size*/, size_t valid_bytes) {
    Recorder *self = recorder();
    if (self == nullptr || buffer == nullptr) {
        return;
    }
    try {
        self->pool.add_filled(buffer, valid_bytes);
    } catch (...) {
        /* The lock failed: a buffer less. */
        return;
    }
}

void close_files(Recorder *self, const char *reason) {
    JournalLine line("ended");
    line.add("reason", reason).add("activities_written", self->file.record_count());
    line.add("activities_dropped", self->dropped_count);
    self->journal.write(line.add("activities_without_times", self->without_times));
    if (!self->cannot_write) {
        self->file.add_flags(KVTRACE_FILE_CLOSED);
    }
    self->file.set_dropped(self->dropped_count);
    self->file.write_header();
}

void take_the_rest(Recorder *self, const char *reason) {
    self->stop_requested.store(true, std::memory_order_release);
    if (self->has_thread.load(std::memory_order_acquire)) {
        pthread_join(self->thread, nullptr);
    }
    const CUptiResult result = self->api.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    write_filled(self);
    count_dropped(self);
    if (self->dropped_count > 0) {
        demand_files(self);
    }
    if (!self->has_files) {
        return;
    }
    if (result != CUPTI_SUCCESS) {
        record_failure(self, KVTRACE_SITE_READ_ACTIVITY, static_cast<uint32_t>(result),
                       "cuptiActivityFlushAll");
    }
    close_files(self, reason);
}

/* Runs before CUPTI's own exit handlers, since it was registered after they were. */
void end_of_process() {
    try {
        end_recording("exit");
    } catch (...) {
        std::fputs("kvtrace: the end of the recording failed\n", stderr);
    }
}

bool enable_kinds(Recorder *self, char *error, size_t error_size) {
    CUptiResult result = self->api.register_callbacks(buffer_requested, buffer_completed);
    const char *call = "cuptiActivityRegisterCallbacks";
    for (const CUpti_ActivityKind kind : kRecordedKinds) {
        if (result == CUPTI_SUCCESS) {
            call = "cuptiActivityEnable";
            result = self->api.enable(kind);
        }
    }
    if (result == CUPTI_SUCCESS) {
        call = "cuptiActivityFlushPeriod";
        result = self->api.flush_period(self->config.flush_period_ms);
    }
    if (result == CUPTI_SUCCESS) {
        return true;
    }
    for (const CUpti_ActivityKind kind : kRecordedKinds) {
        self->api.disable(kind);
    }
    std::snprintf(error, error_size, "%s: result %d", call, static_cast<int>(result));
    return false;
}

void refuse(Recorder *self, kvtrace_failure_site site, const char *text) {
    std::fprintf(stderr, "kvtrace: not recording: %s\n", text);
    if (create_journal(self)) {
        journal_failure(self, site, 0, text);
    }
}

} // namespace

bool begin_recording(const char *config_path) {
    Recorder *self = new (std::nothrow) Recorder;
    char error[2 * KVTRACE_PATH_BYTES];
    if (self == nullptr) {
        std::fputs("kvtrace: not recording: out of memory\n", stderr);
        return false;
    }
    if (!read_activity_config(config_path, &self->config, error, sizeof(error))) {
        std::fprintf(stderr, "kvtrace: not recording: %s\n", error);
        return false;
    }
    if (!self->api.load(self->config.cupti_library, error, sizeof(error))) {
        refuse(self, KVTRACE_SITE_LOAD_CUPTI, error);
        return false;
    }
    if (!self->pool.allocate(self->config.buffer_count, self->config.buffer_bytes)) {
        refuse(self, KVTRACE_SITE_ALLOC_HOST, "no memory for activity buffers");
        return false;
    }
    the_recorder.store(self, std::memory_order_release);
    self->phase.store(Phase::kRunning, std::memory_order_release);
    if (!enable_kinds(self, error, sizeof(error))) {
        self->phase.store(Phase::kEnded, std::memory_order_release);
        refuse(self, KVTRACE_SITE_ENABLE_ACTIVITY, error);
        return false;
    }
    pthread_atfork(nullptr, nullptr, leave_to_parent);
    std::atexit(end_of_process);
    return true;
}

void end_recording(const char *reason) {
    Recorder *self = recorder();
    if (self == nullptr) {
        return;
    }
    Phase expected = Phase::kRunning;
    if (self->phase.compare_exchange_strong(expected, Phase::kEnding)) {
        take_the_rest(self, reason);
        self->phase.store(Phase::kEnded, std::memory_order_release);
        return;
    }
    const uint64_t begin = host_monotonic_ns();
    while (self->phase.load(std::memory_order_acquire) == Phase::kEnding &&
           host_monotonic_ns() - begin < kLongestEndNs) {
        pause();
    }
}

} // namespace kvtrace

void kvtrace_end_recording(void) noexcept {
    try {
        kvtrace::end_recording("asked");
    } catch (...) {
        std::fputs("kvtrace: the end of the recording failed\n", stderr);
    }
}
