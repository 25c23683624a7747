#include "config.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvtrace {
namespace {

bool is_power_of_two(uint32_t value) { return value != 0 && (value & (value - 1)) == 0; }

template <size_t N> bool is_text(const char (&field)[N]) {
    return field[0] != '\0' && std::memchr(field, '\0', N) != nullptr;
}

bool has_valid_targets(const kvtrace_config &config) {
    if (config.target_count == 0 || config.target_count > KVTRACE_MAX_TARGETS) {
        return false;
    }
    for (uint32_t i = 0; i < config.target_count; ++i) {
        if (!is_text(config.targets[i])) {
            return false;
        }
    }
    return true;
}

const char *first_fault(const kvtrace_config &config) {
    if (config.magic != KVTRACE_CONFIG_MAGIC) {
        return "not a kvtrace config";
    }
    if (config.abi_version != KVTRACE_ABI_VERSION || config.struct_size != sizeof(config)) {
        return "written by another version of kvtrace; rebuild the injector with `make injector`";
    }
    if (!is_power_of_two(config.ring_events) || !is_power_of_two(config.launch_records)) {
        return "ring_events and launch_records must be powers of two";
    }
    if (!is_text(config.output_dir) || !is_text(config.sanitizer_library)) {
        return "output_dir or sanitizer_library is not a text";
    }
    if (!has_valid_targets(config)) {
        return "no usable target kernel name";
    }
    constexpr uint32_t both = KVTRACE_CONFIG_SWITCHED | KVTRACE_CONFIG_NO_STAMPS;
    if ((config.flags & both) == both) {
        return "a recording that is switched needs stamps, which bind each replay anew";
    }
    return nullptr;
}

} // namespace

bool read_config(const char *path, kvtrace_config *config, char *error, size_t error_size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        std::snprintf(error, error_size, "%s: %s", path, std::strerror(errno));
        return false;
    }
    const ssize_t count = read(file, config, sizeof(*config));
    close(file);
    const char *fault = count == static_cast<ssize_t>(sizeof(*config))
                            ? first_fault(*config)
                            : "too short for a kvtrace config";
    if (fault != nullptr) {
        std::snprintf(error, error_size, "%s: %s", path, fault);
    }
    return fault == nullptr;
}

kvtrace_store_mode store_mode(const kvtrace_config &config) {
    if ((config.flags & KVTRACE_CONFIG_ALL_WRITES) != 0) {
        return KVTRACE_STORES_ALL;
    }
    return (config.flags & KVTRACE_CONFIG_WRITES) != 0 ? KVTRACE_STORES_LEADER
                                                       : KVTRACE_STORES_NONE;
}

} // namespace kvtrace
