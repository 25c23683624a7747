#include "injector.h"

namespace kvtrace {
namespace {

std::atomic<Injector *> the_injector{nullptr};
std::atomic<bool> is_forked_child{false};

} // namespace

Injector *injector() { return the_injector.load(std::memory_order_acquire); }

void publish_injector(Injector *made) { the_injector.store(made, std::memory_order_release); }

bool records_here() { return !is_forked_child.load(std::memory_order_relaxed); }

void stop_recording_in_forked_child() { is_forked_child.store(true, std::memory_order_relaxed); }

} // namespace kvtrace
