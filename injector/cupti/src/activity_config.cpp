#include "activity_config.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvtrace {
namespace {

/* A buffer must hold some records, and all of them together must be a size that can be had. */
constexpr uint32_t kLeastBytes = 4096;
constexpr uint32_t kMostBytes = 64u << 20;
constexpr uint32_t kMostBuffers = 4096;
/* CUPTI asks for buffers that are aligned so. */
constexpr uint32_t kAlignment = 8;

template <size_t N> bool is_text(const char (&field)[N]) {
    return field[0] != '\0' && std::memchr(field, '\0', N) != nullptr;
}

const char *first_fault(const kvtrace_activity_config &config) {
    if (config.magic != KVTRACE_ACTIVITY_CONFIG_MAGIC) {
        return "not a config of kvtrace's CUPTI observer";
    }
    if (config.abi_version != KVTRACE_ABI_VERSION || config.struct_size != sizeof(config)) {
        return "written by another version of kvtrace; rebuild with `make cupti`";
    }
    if (config.buffer_count == 0 || config.buffer_count > kMostBuffers ||
        config.buffer_bytes < kLeastBytes || config.buffer_bytes > kMostBytes ||
        config.buffer_bytes % kAlignment != 0) {
        return "buffer_count or buffer_bytes is out of range";
    }
    if (config.flush_period_ms == 0) {
        return "flush_period_ms must be more than 0";
    }
    if (!is_text(config.output_dir) || !is_text(config.cupti_library)) {
        return "output_dir or cupti_library is not a text";
    }
    return nullptr;
}

} // namespace

bool read_activity_config(const char *path, kvtrace_activity_config *config, char *error,
                          size_t error_size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        std::snprintf(error, error_size, "%s: %s", path, std::strerror(errno));
        return false;
    }
    const ssize_t count = read(file, config, sizeof(*config));
    close(file);
    const char *fault = count == static_cast<ssize_t>(sizeof(*config)) ? first_fault(*config)
                                                                       : "too short for a config";
    if (fault != nullptr) {
        std::snprintf(error, error_size, "%s: %s", path, fault);
    }
    return fault == nullptr;
}

} // namespace kvtrace
