/* What a test lets the stand-in for CUPTI play. */
#ifndef KVTRACE_FAKE_CUPTI_H
#define KVTRACE_FAKE_CUPTI_H

#include <cstdint>

/* What all kinds of activities have. */
struct FakeActivity {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t graph_node_id;
    uint32_t graph_id;
    uint32_t correlation_id;
    uint32_t stream_id;
};

extern "C" {
void fake_cupti_kernel(const FakeActivity *activity, const char *name, int32_t grid_x);
void fake_cupti_copy(const FakeActivity *activity, uint64_t byte_count, uint8_t copy_kind);
void fake_cupti_peer_copy(const FakeActivity *activity, uint64_t byte_count);
void fake_cupti_memset(const FakeActivity *activity, uint64_t byte_count);
/* A record that only a forced flush gives out, and that nobody can read. */
void fake_cupti_unfinished(void);
}

#endif
