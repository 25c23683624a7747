#include "event_ring.h"

#include <algorithm>

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
    last_dropped_stores_ = dropped_store_count();
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

bool EventRing::is_waiting_for_hole() const {
    return events_ != nullptr && !one_shot_ && !is_whole(taken_) && is_hinted(taken_);
}

/* Sequences are reserved in order, so all below the last one that left a trace were reserved. A
 * hint names its sequence: the last drop at its place, maybe many laps ahead. */
uint64_t EventRing::find_horizon() const {
    uint64_t horizon = taken_;
    for (uint64_t sequence = taken_; sequence < taken_ + capacity_; ++sequence) {
        const uint64_t place = sequence & (capacity_ - 1);
        const uint64_t lap_of_drop = load_mapped(&hints_[place]);
        if (is_whole(sequence)) {
            horizon = std::max(horizon, sequence + 1);
        }
        if (lap_of_drop != 0) {
            horizon = std::max(horizon, ((lap_of_drop - 1) << capacity_log2_) + place + 1);
        }
    }
    return horizon;
}

void EventRing::skip_holes(uint64_t now_ns) {
    if (!is_waiting_for_hole()) {
        return;
    }
    if (taken_ >= horizon_) {
        horizon_ = find_horizon();
        horizon_seen_ns_ = now_ns;
    }
    if (now_ns - horizon_seen_ns_ < kHoleGraceNs) {
        return;
    }
    uint64_t count = 0;
    while (taken_ + count < horizon_ && !is_whole(taken_ + count) && is_hinted(taken_ + count)) {
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

uint64_t EventRing::dropped_store_count() const {
    return events_ != nullptr ? load_mapped(&control_->dropped_store_count) : last_dropped_stores_;
}

} // namespace kvtrace
