#include "failure.h"

#include <atomic>

#include "injector.h"

namespace kvtrace {
namespace {

/* A failure that repeats on every launch must not fill the disk. */
constexpr uint32_t kMaxJournalled = 100;

std::atomic<uint64_t> first{0};
std::atomic<uint32_t> count{0};

} // namespace

void record_failure(kvtrace_failure_site site, uint32_t result, const char *detail) {
    uint64_t none = 0;
    first.compare_exchange_strong(none, (static_cast<uint64_t>(site) << 32) | result);
    Injector *self = injector();
    if (self != nullptr && count.fetch_add(1, std::memory_order_relaxed) < kMaxJournalled) {
        JournalLine line("failure");
        line.add("site", static_cast<uint64_t>(site)).add("result", static_cast<uint64_t>(result));
        self->journal.write(line.add("detail", detail));
    }
}

Failure first_failure() {
    const uint64_t bits = first.load(std::memory_order_relaxed);
    return {static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits)};
}

} // namespace kvtrace
