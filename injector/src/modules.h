/* Modules and functions: patching what holds a target, binding every function of it. */
#ifndef KVTRACE_MODULES_H
#define KVTRACE_MODULES_H

#include "injector.h"

namespace kvtrace {

/* Patch the module if its image names a target, or remember to do so at the end of a target's first
 * plain launch, if that was asked for; it has not run anything yet. */
void module_loaded(Injector *self, const Sanitizer_ResourceModuleData &data);
void module_unloading(Injector *self, const Sanitizer_ResourceModuleData &data);

/* Bind callback data to every function of a patched module, before any launch can see it. */
void functions_loaded(Injector *self, const Sanitizer_ResourceFunctionsLazyLoadedData &data);

/* A plain launch was submitted: if it is the first of a target in a module that waits for that,
 * patch the module and bind its functions. */
void patch_after_launch(Injector *self, const Sanitizer_LaunchData &launch);

/* Find a launched function by name, the first time it is seen, and remember it. */
FunctionInfo meet_function(Injector *self, const Sanitizer_LaunchData &launch);

/* What is known of a launched function. Compares handles only, but for its first launch. */
inline FunctionInfo look_up_function(Injector *self, const Sanitizer_LaunchData &launch) {
    FunctionInfo info = {kNotTarget, false};
    return self->functions.find(launch.function, &info) ? info : meet_function(self, launch);
}

} // namespace kvtrace

#endif
