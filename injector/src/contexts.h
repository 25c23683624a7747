/* CUDA contexts: what each needs before the first kernel of it can be recorded. */
#ifndef KVTRACE_CONTEXTS_H
#define KVTRACE_CONTEXTS_H

#include "injector.h"

namespace kvtrace {

/* The ready context of this handle, or NULL. Any thread, no lock. */
Context *find_context(Injector *self, CUcontext handle);

/* Allocate and announce everything for a context; idempotent. NULL if it cannot be recorded. */
Context *prepare_context(Injector *self, CUcontext handle);

void destroy_context(Injector *self, CUcontext handle);

} // namespace kvtrace

#endif
