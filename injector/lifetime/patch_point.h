/* When a cell's subscriber patches the target's module. */
#ifndef KVTRACE_LIFETIME_PATCH_POINT_H
#define KVTRACE_LIFETIME_PATCH_POINT_H

#include <string>

namespace kvtrace_lifetime {

enum class Point {
    /* As the module is loaded: the injector's way. */
    kModuleLoad,
    /* As its first function is. */
    kFunctionLoad,
    /* In the callback of the target's first launch. */
    kLaunchBegin,
    kLaunchEnd,
    /* As the next module is loaded after that launch. */
    kNextModule,
    /* As the host has waited for that launch. */
    kSynchronize,
    /* In a thread of its own, which that launch's end starts. */
    kThread
};

struct PointName {
    const char *name;
    Point point;
};

constexpr PointName kPoints[] = {
    {"module-load", Point::kModuleLoad},   {"function-load", Point::kFunctionLoad},
    {"launch-begin", Point::kLaunchBegin}, {"launch-end", Point::kLaunchEnd},
    {"next-module", Point::kNextModule},   {"synchronize", Point::kSynchronize},
    {"other-thread", Point::kThread},
};

/* False if there is none of that name. */
inline bool find_point(const std::string &name, Point *point) {
    for (const PointName &known : kPoints) {
        if (name == known.name) {
            *point = known.point;
            return true;
        }
    }
    return false;
}

} // namespace kvtrace_lifetime

#endif
