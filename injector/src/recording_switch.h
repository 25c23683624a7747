/* Recording switched off and on while the process runs. No CUDA types. */
#ifndef KVTRACE_RECORDING_SWITCH_H
#define KVTRACE_RECORDING_SWITCH_H

#include <atomic>
#include <cstdint>

#include "kvtrace_abi.h"

namespace kvtrace {

/*
 * The launcher asks for a turn in a mapped file; the drain thread follows it, and launching threads
 * read one flag. A launch that read it before it changed is recorded as if it had come earlier.
 */
class RecordingSwitch {
  public:
    /* Map the file, which stays mapped; false (errno) if it cannot be. */
    bool open(const char *path);

    /* Drain thread only: take over what is asked for. True if that is new. */
    bool follow();

    bool is_off() const { return is_off_.load(std::memory_order_relaxed); }
    uint64_t turn() const { return turn_; }

    /* Any thread: a launch of so many blocks passes without being recorded. */
    void count_passed(uint64_t blocks);
    uint64_t launches_passed() const { return launches_.load(std::memory_order_relaxed); }
    uint64_t blocks_passed() const { return blocks_.load(std::memory_order_relaxed); }

  private:
    const kvtrace_switch *asked_ = nullptr;
    uint64_t turn_ = 0;
    std::atomic<bool> is_off_{false};
    std::atomic<uint64_t> launches_{0};
    std::atomic<uint64_t> blocks_{0};
};

} // namespace kvtrace

#endif
