/* The reading side of the event ring in mapped host memory. No CUDA types and no CUDA calls. */
#ifndef KVTRACE_EVENT_RING_H
#define KVTRACE_EVENT_RING_H

#include <cstddef>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * The device writes events and counts drops; one reader takes whole events in sequence and gives
 * their space back. A sequence that the device dropped leaves a hole, which is skipped once it is
 * certain that no event will come.
 */
class EventRing {
  public:
    /* `events`, `control` and `hints` are mapped host memory, zeroed, alive until `detach`. */
    void attach(kvtrace_block_event *events, kvtrace_ring_control *control, uint32_t *hints,
                uint32_t capacity, bool one_shot);
    /* The memory is about to go: nothing is read after this. */
    void detach();

    /* The longest contiguous run of whole events at the front; 0 if none yet. */
    size_t peek(const kvtrace_block_event **first, uint64_t now_ns);
    /* These events were taken. In one-shot mode their space is not given back. */
    void consume(size_t count);

    /* Events that the device counted as dropped, and those of them that were stores. */
    uint64_t dropped_count() const;
    uint64_t dropped_store_count() const;
    /* Sequences skipped as holes; equals dropped_count once a ring that wraps is quiet. */
    uint64_t holes_skipped() const { return holes_skipped_; }
    bool is_attached() const { return events_ != nullptr; }
    /* A hole is at the front and not yet old enough: events may stand behind it. */
    bool is_waiting_for_hole() const;

  private:
    bool is_whole(uint64_t sequence) const;
    bool is_hinted(uint64_t sequence) const;
    void skip_holes(uint64_t now_ns);
    uint64_t find_horizon() const;
    void advance(uint64_t count);

    kvtrace_block_event *events_ = nullptr;
    kvtrace_ring_control *control_ = nullptr;
    uint32_t *hints_ = nullptr;
    uint64_t capacity_ = 0;
    uint32_t capacity_log2_ = 0;
    bool one_shot_ = false;
    uint64_t taken_ = 0;
    uint64_t holes_skipped_ = 0;
    /* Every sequence below it was reserved at horizon_seen_ns_. */
    uint64_t horizon_ = 0;
    uint64_t horizon_seen_ns_ = 0;
    uint64_t last_dropped_ = 0;
    uint64_t last_dropped_stores_ = 0;
};

} // namespace kvtrace

#endif
