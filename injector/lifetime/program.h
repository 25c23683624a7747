/* One cell of the lifetime matrix as a program: what the CUDA and the emulated one share. */
#ifndef KVTRACE_LIFETIME_PROGRAM_H
#define KVTRACE_LIFETIME_PROGRAM_H

#include <cstdint>
#include <string>

namespace kvtrace_lifetime {

constexpr uint32_t kNodes = 40;
constexpr uint32_t kReplays = 7;
/* As many as the first launch had whose blocks the article missed. */
constexpr uint32_t kFirstBlocks = 2048;

struct Cell {
    /* First a plain launch of each kernel: only where no callback follows the pointer. */
    bool starts_plain = false;
    /* Neighbour kernels are in the target's module, not in one of their own. */
    bool same_module = false;
    bool has_memset_nodes = false;
    /* Not 0: before all else a plain launch of the target with so many blocks, which loads it, and
     * then one of the neighbour. */
    uint32_t first_blocks = 0;
};

/* The workload: capture a graph of the cell's nodes and replay it, calling `before_replay` each
 * time; how many replays ended well. Sets `error` to the name of the first CUDA error. */
uint32_t run(const Cell &cell, void (*before_replay)(uint32_t), std::string *error);

/* Make the shared region known to the device; false with an error if it cannot be. */
bool map_region(void *region, uint64_t bytes, std::string *error);

} // namespace kvtrace_lifetime

#endif
