#include "kernel_names.h"

#include <cstdio>
#include <cstring>

namespace kvtrace {
namespace {

/* An identifier in an Itanium-mangled name stands behind its length in decimal. The character
 * before the length must not be a digit, or 4name would be found in 14name. */
bool has_identifier(const char *mangled, const char *identifier) {
    char coded[KVTRACE_NAME_BYTES + 24];
    std::snprintf(coded, sizeof(coded), "%zu%s", std::strlen(identifier), identifier);
    for (const char *at = mangled; (at = std::strstr(at, coded)) != nullptr; ++at) {
        if (at > mangled && (at[-1] < '0' || at[-1] > '9')) {
            return true;
        }
    }
    return false;
}

} // namespace

bool is_target_name(const kvtrace_config &config, const char *function_name) {
    for (uint32_t i = 0; i < config.target_count; ++i) {
        const char *target = config.targets[i];
        if (std::strcmp(function_name, target) == 0 ||
            (std::strncmp(function_name, "_Z", 2) == 0 && has_identifier(function_name, target))) {
            return true;
        }
    }
    return false;
}

bool image_names_target(const kvtrace_config &config, const char *image, size_t image_size) {
    for (uint32_t i = 0; i < config.target_count; ++i) {
        const char *target = config.targets[i];
        if (memmem(image, image_size, target, std::strlen(target)) != nullptr) {
            return true;
        }
    }
    return false;
}

} // namespace kvtrace
