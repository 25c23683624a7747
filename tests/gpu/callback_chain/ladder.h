/* What the chain's program and the ladder's subscriber, a library that the driver loads, share. */
#ifndef KVTRACE_CALLBACK_LADDER_H
#define KVTRACE_CALLBACK_LADDER_H

/* Variable with the path of the Sanitizer's library. */
#define KVTRACE_LADDER_SANITIZER "KVTRACE_LADDER_SANITIZER"
/* Variable with the groups of callbacks that are enabled: modules, launches, graphs, nodes. */
#define KVTRACE_LADDER_CALLBACKS "KVTRACE_LADDER_CALLBACKS"
#define KVTRACE_LADDER_TARGET "probe_target"
/* Each callback's data has its counters before it, so many bytes away, in a line of their own. */
#define KVTRACE_LADDER_COUNTERS_BEFORE_DATA 128

extern "C" {
/* Patch the next module with the target that is loaded, with the callback kvtrace_ladder_<name>,
 * and bind `data`, which outlives the context, to its functions. */
__attribute__((visibility("default"))) void kvtrace_ladder_next(const char *name, const void *data);
/* What failed first, empty if nothing did; alive as long as the process. */
__attribute__((visibility("default"))) const char *kvtrace_ladder_failure();
}

#endif
