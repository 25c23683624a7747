#include "recording_switch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace kvtrace {
namespace {

/* Whether the whole struct is there: what lies behind a file's end cannot be read. */
bool is_whole(int file) {
    struct stat status = {};
    if (fstat(file, &status) != 0) {
        return false;
    }
    if (status.st_size < static_cast<off_t>(sizeof(kvtrace_switch))) {
        errno = EINVAL;
        return false;
    }
    return true;
}

} // namespace

bool RecordingSwitch::open(const char *path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    void *mapped = is_whole(file)
                       ? mmap(nullptr, sizeof(kvtrace_switch), PROT_READ, MAP_SHARED, file, 0)
                       : MAP_FAILED;
    const int error = errno;
    close(file);
    errno = error;
    if (mapped == MAP_FAILED) {
        return false;
    }
    asked_ = static_cast<const kvtrace_switch *>(mapped);
    return true;
}

bool RecordingSwitch::follow() {
    if (asked_ == nullptr) {
        return false;
    }
    const uint64_t turn = __atomic_load_n(&asked_->turn, __ATOMIC_ACQUIRE);
    if (turn == turn_) {
        return false;
    }
    turn_ = turn;
    is_off_.store(turn % 2 != 0, std::memory_order_relaxed);
    return true;
}

void RecordingSwitch::count_passed(uint64_t blocks) {
    launches_.fetch_add(1, std::memory_order_relaxed);
    blocks_.fetch_add(blocks, std::memory_order_relaxed);
}

} // namespace kvtrace
