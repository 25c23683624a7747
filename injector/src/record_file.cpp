#include "record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "clock.h"

namespace kvtrace {
namespace {

bool write_all(int file, const char *bytes, size_t count, off_t at) {
    while (count > 0) {
        const ssize_t written = pwrite(file, bytes, count, at);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            errno = written == 0 ? ENOSPC : errno;
            return false;
        }
        bytes += written;
        at += written;
        count -= static_cast<size_t>(written);
    }
    return true;
}

} // namespace

bool RecordFile::create(const char *path, const kvtrace_file_header &header) {
    file_ = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    header_ = header;
    changed_ = true;
    return file_ >= 0 && write_header();
}

bool RecordFile::append(const void *records, size_t count) {
    const size_t bytes = count * header_.record_size;
    const uint64_t at = sizeof(header_) + header_.record_count * header_.record_size;
    if (file_ < 0 ||
        !write_all(file_, static_cast<const char *>(records), bytes, static_cast<off_t>(at))) {
        return false;
    }
    header_.record_count += count;
    changed_ = true;
    return true;
}

void RecordFile::set_dropped(uint64_t count) {
    changed_ = changed_ || header_.dropped_count != count;
    header_.dropped_count = count;
}

void RecordFile::add_flags(uint32_t flags) {
    changed_ = changed_ || (header_.flags & flags) != flags;
    header_.flags |= flags;
}

void RecordFile::remove_flags(uint32_t flags) {
    changed_ = changed_ || (header_.flags & flags) != 0;
    header_.flags &= ~flags;
}

void RecordFile::set_failure(uint32_t site, uint32_t result) {
    changed_ = changed_ || header_.first_failure_site != site;
    header_.first_failure_site = site;
    header_.first_failure_result = result;
}

bool RecordFile::write_header() {
    if (!changed_ || file_ < 0) {
        return file_ >= 0;
    }
    header_.host_monotonic_ns = host_monotonic_ns();
    changed_ = false;
    return write_all(file_, reinterpret_cast<const char *>(&header_), sizeof(header_), 0);
}

} // namespace kvtrace
