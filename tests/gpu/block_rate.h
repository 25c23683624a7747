/*
 * A program that launches a target kernel at the rate that it is told on stdin, one line a step:
 *
 *     BLOCKS LAUNCHES INTERVAL_NS
 *
 * so many launches of so many blocks, one each interval, or one after another if it is 0. Answers
 * each line, once all has run, with a JSON line, and ends with its input. What runs the blocks is
 * the includer's: a GPU, or the emulator.
 */
#ifndef KVTRACE_BLOCK_RATE_H
#define KVTRACE_BLOCK_RATE_H

#include <chrono>
#include <cstdio>

namespace kvtrace_block_rate {

/* `launch(blocks)` queues one launch, `wait()` waits for all of them. */
template <typename Launch, typename Wait> int serve(Launch launch, Wait wait) {
    using Clock = std::chrono::steady_clock;
    unsigned blocks = 0;
    unsigned launches = 0;
    unsigned long long interval_ns = 0;
    while (std::scanf("%u %u %llu", &blocks, &launches, &interval_ns) == 3) {
        const Clock::time_point begin = Clock::now();
        for (unsigned i = 0; i < launches; ++i) {
            const auto due = begin + std::chrono::nanoseconds(interval_ns * i);
            while (Clock::now() < due) {
            }
            launch(blocks);
        }
        wait();
        const std::chrono::duration<double> took = Clock::now() - begin;
        std::printf("{\"blocks\": %llu, \"seconds\": %.6f}\n",
                    static_cast<unsigned long long>(blocks) * launches, took.count());
        std::fflush(stdout);
    }
    return 0;
}

} // namespace kvtrace_block_rate

#endif
