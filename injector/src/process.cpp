#include "process.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "drain.h"
#include "failure.h"

namespace kvtrace {
namespace {

bool create_files(Injector *self) {
    char path[KVTRACE_PATH_BYTES + 64];
    raw_file_path(*self, path, sizeof(path), ".journal.jsonl");
    if (!self->journal.create(path)) {
        record_failure(KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), path);
        return false;
    }
    JournalLine line("attached");
    line.add("abi_version", static_cast<uint64_t>(KVTRACE_ABI_VERSION));
    line.add("process_id", static_cast<uint64_t>(getpid()));
    line.add("sanitizer_library", self->config.sanitizer_library).add("loaded_by", self->loaded_by);
    self->journal.write(line);
    kvtrace_file_header header = make_file_header(*self);
    header.magic = KVTRACE_LAUNCHES_MAGIC;
    header.record_size = sizeof(kvtrace_launch_record);
    header.capacity = self->config.launch_records;
    raw_file_path(*self, path, sizeof(path), ".launches.kvt");
    if (!self->launch_file.create(path, header)) {
        record_failure(KVTRACE_SITE_WRITE_FILE, static_cast<uint32_t>(errno), path);
        return false;
    }
    return true;
}

/* Without its file everything is recorded, and who switches sees no turn taken. */
void open_switch(Injector *self) {
    char path[KVTRACE_PATH_BYTES + 64];
    std::snprintf(path, sizeof(path), "%s/kvtrace.switch", self->config.output_dir);
    if (self->has_flag(KVTRACE_CONFIG_SWITCHED) && !self->recording_switch.open(path)) {
        record_failure(KVTRACE_SITE_OPEN_SWITCH, static_cast<uint32_t>(errno), path);
    }
}

} // namespace

kvtrace_file_header make_file_header(const Injector &self) {
    kvtrace_file_header header = {};
    header.abi_version = KVTRACE_ABI_VERSION;
    header.process_id = static_cast<uint32_t>(getpid());
    const auto if_asked = [&self](uint32_t asked, uint32_t flag) {
        return self.has_flag(asked) ? flag : 0;
    };
    header.flags = if_asked(KVTRACE_CONFIG_ONE_SHOT, KVTRACE_FILE_ONE_SHOT) |
                   if_asked(KVTRACE_CONFIG_EMULATED, KVTRACE_FILE_EMULATED) |
                   if_asked(KVTRACE_CONFIG_NO_PATCH, KVTRACE_FILE_NO_PATCH) |
                   if_asked(KVTRACE_CONFIG_NO_OP_PATCH, KVTRACE_FILE_NO_OP_PATCH);
    return header;
}

void raw_file_path(const Injector &self, char *path, size_t path_size, const char *suffix) {
    std::snprintf(path, path_size, "%s/%d%s", self.config.output_dir, static_cast<int>(getpid()),
                  suffix);
}

bool set_up_process(Injector *self) {
    const std::lock_guard<std::mutex> lock(self->setup_mutex);
    if (self->is_set_up) {
        return self->launch_file.is_open();
    }
    self->is_set_up = true;
    if (!self->functions.allocate() ||
        !self->launches.allocate(self->config.launch_records,
                                 self->has_flag(KVTRACE_CONFIG_ONE_SHOT))) {
        record_failure(KVTRACE_SITE_ALLOC_HOST, ENOMEM, "launch records");
        return false;
    }
    pthread_atfork(nullptr, nullptr, stop_recording_in_forked_child);
    if (!create_files(self)) {
        return false;
    }
    open_switch(self);
    return start_drain(self);
}

} // namespace kvtrace
