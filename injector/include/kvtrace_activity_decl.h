/*
 * The records of the second observer, which reads CUPTI's activity records: what ran on the GPU,
 * from when to when, whatever it is. Read together with kvtrace_abi_decl.h, by the same three
 * readers and under the same rules and version: comments, `#define NAME integer`, enums, structs.
 *
 * One more clock: gpu_cupti_ns, in which CUPTI gives its times. It is never subtracted from
 * host_monotonic_ns or from gpu_globaltimer_ns.
 */

/* First eight bytes as text: KVTACTIV of a .activity.kva file, KVTACCFG of the config. */
#define KVTRACE_ACTIVITIES_MAGIC 0x564954434154564B
#define KVTRACE_ACTIVITY_CONFIG_MAGIC 0x474643434154564B

/* name_id of a record that has no name: a copy or a memset. */
#define KVTRACE_ACTIVITY_NO_NAME 4294967295

enum kvtrace_activity_kind {
    KVTRACE_ACTIVITY_KERNEL = 1,
    KVTRACE_ACTIVITY_COPY = 2,
    KVTRACE_ACTIVITY_MEMSET = 3
};

/* One kernel, copy or memset that ran. */
typedef struct {
    /* When it began and ended, on CUPTI's clock; both 0 if CUPTI could not measure it. */
    uint64_t gpu_cupti_begin_ns;
    uint64_t gpu_cupti_end_ns;
    /* CUPTI's number of the node of a graph exec; 0 outside of graphs. */
    uint64_t graph_node_id;
    /* CUPTI's grid id of a kernel; 0 for others. */
    uint64_t grid_id;
    /* Bytes that were copied or set; 0 for kernels. */
    uint64_t byte_count;
    /* Of the call that submitted it: the same for all nodes of one graph launch. */
    uint32_t correlation_id;
    /* CUPTI's number of the graph exec; 0 outside of graphs. */
    uint32_t graph_id;
    /* CUPTI's numbers, no handles. */
    uint32_t stream_id;
    uint32_t context_id;
    uint32_t device_ordinal;
    /* Line of the names file, from 0, or KVTRACE_ACTIVITY_NO_NAME. */
    uint32_t name_id;
    uint32_t grid_dim_x;
    uint16_t grid_dim_y;
    uint16_t grid_dim_z;
    uint16_t block_dim_x;
    uint16_t block_dim_y;
    uint16_t block_dim_z;
    /* kvtrace_activity_kind. */
    uint8_t activity_kind;
    /* CUpti_ActivityMemcpyKind of a copy, such as 1: host to device; 0 for others. */
    uint8_t copy_kind;
} kvtrace_activity_record;

/* What the launcher tells the second observer: the file named by KVTRACE_CONFIG. */
typedef struct {
    /* KVTRACE_ACTIVITY_CONFIG_MAGIC. */
    uint64_t magic;
    /* KVTRACE_ABI_VERSION. */
    uint32_t abi_version;
    /* sizeof this struct. */
    uint32_t struct_size;
    /* Buffers that CUPTI may fill before one is written, and the bytes of each. */
    uint32_t buffer_count;
    uint32_t buffer_bytes;
    /* How often CUPTI is asked for what it has, milliseconds. */
    uint32_t flush_period_ms;
    uint32_t reserved;
    /* Absolute directory for raw files. */
    char output_dir[KVTRACE_PATH_BYTES];
    /* Absolute path of libcupti. */
    char cupti_library[KVTRACE_PATH_BYTES];
} kvtrace_activity_config;
