/* Modules and functions: patching what holds a target, binding every function of it. */
#ifndef KVTRACE_MODULES_H
#define KVTRACE_MODULES_H

#include "injector.h"

namespace kvtrace {

/* Patch the module if its image names a target; it has not run anything yet. */
void module_loaded(Injector *self, const Sanitizer_ResourceModuleData &data);
void module_unloading(Injector *self, const Sanitizer_ResourceModuleData &data);

/* Bind callback data to every function of a patched module, before any launch can see it. */
void functions_loaded(Injector *self, const Sanitizer_ResourceFunctionsLazyLoadedData &data);

/* What is known of a launched function; the first time, it is found by name and remembered. */
FunctionInfo look_up_function(Injector *self, const Sanitizer_LaunchData &launch);

} // namespace kvtrace

#endif
