/* From the Sanitizer's one callback to the named handlers. */
#ifndef KVTRACE_CALLBACKS_H
#define KVTRACE_CALLBACKS_H

#include "injector.h"

namespace kvtrace {

/* Subscribe and switch on exactly the callbacks that have a handler. */
bool subscribe(Injector *self);

} // namespace kvtrace

#endif
