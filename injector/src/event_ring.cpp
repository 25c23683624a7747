#include "event_ring.h"

namespace kvtrace {
namespace {

/* A block's four stores land within microseconds; a hinted place that stays empty this long is a
 * hole and not an event on its way. */
constexpr uint64_t kHoleGraceNs = 50000000;

/* Acquire: what the device wrote before this word is read after it. */
template <typename Word> Word load_mapped(const Word *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

} // namespace

void EventRing::attach(kvtrace_block_event *events, kvtrace_ring_control *control, uint32_t *hints,
                       uint32_t capacity, bool one_shot) {
    events_ = events;
    control_ = control;
    hints_ = hints;
    capacity_ = capacity;
    capacity_log2_ = static_cast<uint32_t>(__builtin_ctz(capacity));
    one_shot_ = one_shot;
}

void EventRing::detach() {
    last_dropped_ = dropped_count();
    events_ = nullptr;
}

bool EventRing::is_whole(uint64_t sequence) const {
    const kvtrace_block_event &event = events_[sequence & (capacity_ - 1)];
    const auto tag = static_cast<uint16_t>((sequence >> capacity_log2_) + 1);
    return load_mapped(&event.tag0) == tag && load_mapped(&event.tag1) == tag &&
           load_mapped(&event.tag2) == tag && load_mapped(&event.tag3) == tag;
}

bool EventRing::is_hinted(uint64_t sequence) const {
    const auto lap = static_cast<uint32_t>(sequence >> capacity_log2_) + 1;
    return load_mapped(&hints_[sequence & (capacity_ - 1)]) >= lap;
}

size_t EventRing::peek(const kvtrace_block_event **first, uint64_t now_ns) {
    if (events_ == nullptr || (one_shot_ && taken_ >= capacity_)) {
        return 0;
    }
    skip_holes(now_ns);
    const uint64_t place = taken_ & (capacity_ - 1);
    *first = &events_[place];
    size_t count = 0;
    while (place + count < capacity_ && is_whole(taken_ + count)) {
        ++count;
    }
    return count;
}

void EventRing::skip_holes(uint64_t now_ns) {
    if (one_shot_ || is_whole(taken_) || !is_hinted(taken_)) {
        return;
    }
    if (taken_ >= hole_end_) {
        hole_end_ = taken_;
        /* A hint of a later lap is as good: every sequence before it was reserved too. */
        while (!is_whole(hole_end_) && is_hinted(hole_end_)) {
            ++hole_end_;
        }
        hole_seen_ns_ = now_ns;
    }
    if (now_ns - hole_seen_ns_ < kHoleGraceNs) {
        return;
    }
    uint64_t count = 0;
    while (taken_ + count < hole_end_ && !is_whole(taken_ + count)) {
        ++count;
    }
    holes_skipped_ += count;
    advance(count);
}

void EventRing::advance(uint64_t count) {
    taken_ += count;
    if (!one_shot_) {
        __atomic_store_n(&control_->drained_count, taken_, __ATOMIC_RELEASE);
    }
}

void EventRing::consume(size_t count) { advance(count); }

uint64_t EventRing::dropped_count() const {
    return events_ != nullptr ? load_mapped(&control_->dropped_count) : last_dropped_;
}

} // namespace kvtrace
