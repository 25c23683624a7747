/* Launches of target kernels, plain and as graph nodes: the host's side of the books. */
#ifndef KVTRACE_LAUNCHES_H
#define KVTRACE_LAUNCHES_H

#include "injector.h"

namespace kvtrace {

void plain_launch(Injector *self, const Sanitizer_LaunchData &launch);
void graph_exec_created(Injector *self, const Sanitizer_GraphExecData &data);
void graph_exec_destroying(Injector *self, const Sanitizer_GraphExecData &data);
void graph_launch(Injector *self, const Sanitizer_GraphLaunchData &data);
void graph_node_launch(Injector *self, const Sanitizer_GraphNodeLaunchData &node);

} // namespace kvtrace

#endif
