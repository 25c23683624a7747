/* Deciding by name whether a kernel is a target. */
#ifndef KVTRACE_KERNEL_NAMES_H
#define KVTRACE_KERNEL_NAMES_H

#include <cstddef>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * True if `function_name` is a target: the base name itself (extern "C", Triton), or a C++ name
 * whose mangled form has the base name as one whole identifier.
 */
bool is_target_name(const kvtrace_config &config, const char *function_name);

/* True if a module image may hold a target: a quick search, so rather once too often. */
bool image_names_target(const kvtrace_config &config, const char *image, size_t image_size);

} // namespace kvtrace

#endif
