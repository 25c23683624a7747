/* Moving records from the rings into the files. */
#ifndef KVTRACE_DRAIN_H
#define KVTRACE_DRAIN_H

#include "injector.h"

namespace kvtrace {

/* Start the drain thread, and see to it that an orderly exit of the process drains once more. */
bool start_drain(Injector *self);

/* The context is about to go: take what is whole, close its file, never look at its memory again.
 */
void close_context(Injector *self, Context *context);

} // namespace kvtrace

#endif
