/*
 * The kvtrace ABI: every byte that crosses between the injector, its device callback and Python.
 *
 * Read three ways: by C and C++ (through kvtrace_abi.h), by CUDA, and by cffi, which parses this
 * text as it stands. So this file holds only comments, `#define NAME integer`, enums and structs of
 * fixed-width fields; no include, guard, expression or string.
 *
 * Raise KVTRACE_ABI_VERSION when a size, an offset or the meaning of a field changes, and write it
 * down in CHANGELOG.md. All integers are little-endian. Two clocks appear and are never subtracted
 * from each other: host_monotonic_ns (CLOCK_MONOTONIC) and gpu_globaltimer_ns (%globaltimer).
 */

#define KVTRACE_ABI_VERSION 1

/* First eight bytes of each structure, as text: KVTEVENT, KVTLAUNC, KVTCONFG, KVTCBDAT. */
#define KVTRACE_EVENTS_MAGIC 0x544E45564554564B
#define KVTRACE_LAUNCHES_MAGIC 0x434E55414C54564B
#define KVTRACE_CONFIG_MAGIC 0x47464E4F4354564B
#define KVTRACE_CALLBACK_DATA_MAGIC 0x544144424354564B

#define KVTRACE_PATH_BYTES 1024
#define KVTRACE_NAME_BYTES 128
#define KVTRACE_MAX_TARGETS 16

/* launch_stamp runs from 1 to this number and starts again at 1; 0 means that no stamp was bound.
 */
#define KVTRACE_MAX_LAUNCH_STAMP 65535

/* kernel_slot of an event whose callback data was bound to a replay, not to a function: the kernel
 * follows from pc. */
#define KVTRACE_KERNEL_SLOT_FROM_PC 4294967295

enum kvtrace_event_kind {
    KVTRACE_EVENT_BLOCK_ENTER = 1,
    /* A store to global memory by a thread of a target kernel; only if stores are recorded. */
    KVTRACE_EVENT_GLOBAL_STORE = 2
};

/* Which stores of a target kernel become events. */
enum kvtrace_store_mode {
    KVTRACE_STORES_NONE = 0,
    /* Those of thread (0,0,0) of each block. */
    KVTRACE_STORES_LEADER = 1,
    KVTRACE_STORES_ALL = 2
};

enum kvtrace_launch_kind { KVTRACE_LAUNCH_PLAIN = 1, KVTRACE_LAUNCH_GRAPH_NODE = 2 };

enum kvtrace_launch_flag {
    /* The function's module was patched to record, so its blocks must show up as events. */
    KVTRACE_LAUNCH_PATCHED = 1,
    /* The stamp was bound to this launch; its events carry launch_stamp. */
    KVTRACE_LAUNCH_STAMPED = 2
};

enum kvtrace_bind_mode {
    /* Every function of a patched module is bound: the mode that survives graph replay. */
    KVTRACE_BIND_EVERY_FUNCTION = 0,
    /* Only the target is bound. Reproduces the misaligned address; never a default. */
    KVTRACE_BIND_TARGET_ONLY = 1
};

enum kvtrace_config_flag {
    /* The event ring and the launch table are filled once and never freed. */
    KVTRACE_CONFIG_ONE_SHOT = 1,
    /* Do not bind a stamp to each replay; events carry launch_stamp 0. */
    KVTRACE_CONFIG_NO_STAMPS = 2,
    /* The engine is the emulator: files carry KVTRACE_FILE_EMULATED. */
    KVTRACE_CONFIG_EMULATED = 4,
    /* Record the stores of each block's thread (0,0,0) too. */
    KVTRACE_CONFIG_WRITES = 8,
    /* Record the stores of every thread; implies the flag above. */
    KVTRACE_CONFIG_ALL_WRITES = 16,
    /* Patch a module with a target when the first plain launch of one has been submitted, not when
     * the module is loaded: that launch, and what was queued before, has no events. */
    KVTRACE_CONFIG_PATCH_AT_FIRST_LAUNCH_END = 32,
    /* Patch nothing: launch records only, to measure what the host callbacks cost. */
    KVTRACE_CONFIG_NO_PATCH = 64,
    /* Patch with a device callback that returns at once, to measure what being called costs. */
    KVTRACE_CONFIG_NO_OP_PATCH = 128,
    /* Do as the switch file says: record, or let launches pass. Not together with NO_STAMPS. */
    KVTRACE_CONFIG_SWITCHED = 256
};

enum kvtrace_file_flag {
    KVTRACE_FILE_ONE_SHOT = 1,
    /* The file was closed in order: nothing that was recorded is missing from it. */
    KVTRACE_FILE_CLOSED = 2,
    KVTRACE_FILE_EMULATED = 4,
    /* A graph with conditional nodes ran: the host cannot know which bodies ran. */
    KVTRACE_FILE_CONDITIONAL_NODES = 8,
    /* A module with a target kernel was patched in this context (events) or process (launches). */
    KVTRACE_FILE_PATCHED = 16,
    /* A graph that can launch device graphs ran: those launches have no host record. */
    KVTRACE_FILE_DEVICE_GRAPHS = 32,
    /* Stores of each block's thread (0,0,0) were recorded. */
    KVTRACE_FILE_WRITES = 64,
    /* Stores of every thread were recorded; set together with the flag above. */
    KVTRACE_FILE_ALL_WRITES = 128,
    /* Nothing was patched, by design: no launch can have an event. */
    KVTRACE_FILE_NO_PATCH = 256,
    /* The device callback returned at once, by design: no launch can have an event. */
    KVTRACE_FILE_NO_OP_PATCH = 512
};

/* Where the first failure happened: header field first_failure_site. */
enum kvtrace_failure_site {
    KVTRACE_SITE_NONE = 0,
    KVTRACE_SITE_LOAD_SANITIZER = 1,
    KVTRACE_SITE_SUBSCRIBE = 2,
    KVTRACE_SITE_ENABLE_CALLBACK = 3,
    KVTRACE_SITE_ALLOC_DEVICE = 4,
    KVTRACE_SITE_ALLOC_HOST = 5,
    KVTRACE_SITE_COPY_TO_DEVICE = 6,
    KVTRACE_SITE_ADD_PATCHES = 7,
    KVTRACE_SITE_PATCH_INSTRUCTIONS = 8,
    KVTRACE_SITE_PATCH_MODULE = 9,
    KVTRACE_SITE_BIND_FUNCTION = 10,
    KVTRACE_SITE_BIND_LAUNCH = 11,
    KVTRACE_SITE_FUNCTION_NAME = 12,
    KVTRACE_SITE_FUNCTION_PC = 13,
    KVTRACE_SITE_WRITE_FILE = 14,
    KVTRACE_SITE_START_THREAD = 15,
    KVTRACE_SITE_TABLE_FULL = 16,
    KVTRACE_SITE_EXCEPTION = 17,
    KVTRACE_SITE_SYNCHRONIZE = 18,
    KVTRACE_SITE_OPEN_SWITCH = 19,
    /* Of the CUPTI observer. */
    KVTRACE_SITE_LOAD_CUPTI = 40,
    KVTRACE_SITE_ENABLE_ACTIVITY = 41,
    KVTRACE_SITE_READ_ACTIVITY = 42
};

/* First 64 bytes of every .kvt file. The counts are kept true while the engine runs. */
typedef struct {
    /* KVTRACE_EVENTS_MAGIC or KVTRACE_LAUNCHES_MAGIC. */
    uint64_t magic;
    /* KVTRACE_ABI_VERSION of the writer. */
    uint32_t abi_version;
    /* sizeof of one record: 64 or 96. */
    uint32_t record_size;
    /* Records in this file. A closed file has exactly 64 + record_size * record_count bytes. */
    uint64_t record_count;
    /* Records that found no space and were counted instead of written. */
    uint64_t dropped_count;
    /* CLOCK_MONOTONIC of the last change to this header, ns. */
    uint64_t host_monotonic_ns;
    /* Records that the ring (events) or table (launches) holds. */
    uint32_t capacity;
    uint32_t process_id;
    /* From 0 within the process for event files; 0 in launch files. */
    uint32_t context_index;
    /* kvtrace_file_flag bits. */
    uint32_t flags;
    /* kvtrace_failure_site of the first failure of the process; 0 means none. */
    uint32_t first_failure_site;
    /* SanitizerResult, or errno for file and thread failures. */
    uint32_t first_failure_result;
} kvtrace_file_header;

/*
 * One thread block that entered a target kernel, written by the block's thread (0,0,0); or one
 * store to global memory, written by the thread that stores. See event_kind.
 *
 * Four 16-byte parts, each stored at once and each ending in the same tag: the low 16 bits of
 * 1 + sequence / capacity. A reader knows a whole event by four equal, expected tags, without any
 * fence on the device.
 */
typedef struct {
    /* %globaltimer at block entry or store, ns. Says when that began, nothing of how long it took.
     */
    uint64_t gpu_globaltimer_ns;
    uint32_t block_idx_x;
    uint16_t block_idx_y;
    uint16_t tag0;
    /* Program counter. At block entry the kernel's, which identifies the function; of a store, the
     * instruction's. */
    uint64_t pc;
    /* Number of the replay's stamp; 0 for plain launches. */
    uint32_t launch_stamp;
    uint16_t block_idx_z;
    uint16_t tag1;
    /* %gridid: equals Sanitizer_LaunchData.gridId. In a graph it belongs to the node of the exec.
     */
    uint64_t grid_id;
    /* The injector's number for the function, or KVTRACE_KERNEL_SLOT_FROM_PC. */
    uint32_t kernel_slot;
    /* %smid. */
    uint16_t sm_id;
    uint16_t tag2;
    /* First byte that a store writes; 0 for block entries. */
    uint64_t address;
    /* kvtrace_event_kind. */
    uint8_t event_kind;
    /* Bytes of the access; 0 for block entries. */
    uint8_t access_size;
    /* Linear thread index in the block; 0 for block entries. */
    uint16_t thread_index;
    /* Low 16 bits of the sequence. The full sequence of a record is its position in the file plus
     * the drops before it. */
    uint16_t sequence_low;
    uint16_t tag3;
} kvtrace_block_event;

/* One launch of a target kernel as the host saw it: a plain launch or a graph node in one replay.
 */
typedef struct {
    /* CUgraphExec, an address that may come back; 0 for a plain launch. */
    uint64_t graph_exec;
    /* CUgraphNode, opaque; 0 for a plain launch. */
    uint64_t graph_node;
    /* Sanitizer_LaunchData.gridId. */
    uint64_t grid_id;
    /* CUstream the kernel runs on; 0 is the default stream. */
    uint64_t stream;
    /* CUstream given to the graph launch; 0 for a plain launch. */
    uint64_t api_stream;
    /* CLOCK_MONOTONIC in the callback, ns: when the launch was submitted. The target nodes of one
     * replay are submitted by one call and share the time of the first of them. */
    uint64_t host_monotonic_ns;
    /* Number of this graph exec within the process, from 1: unique where the address is not.
     * 0 for a plain launch or an exec created before the injector attached. */
    uint32_t exec_generation;
    /* Launch id of the graph exec, from 1; 0 for a plain launch. */
    uint32_t launch_id;
    /* What the events of this launch carry if KVTRACE_LAUNCH_STAMPED is set; else 0. */
    uint32_t launch_stamp;
    /* Engine step, set by the engine plug-in; 0 means none. */
    uint32_t step_stamp;
    /* The injector's number for the function, from 0; named in the journal. */
    uint32_t kernel_slot;
    /* Thread that launched (Linux tid). */
    uint32_t thread_id;
    uint32_t grid_dim_x;
    uint16_t grid_dim_y;
    uint16_t grid_dim_z;
    uint16_t block_dim_x;
    uint16_t block_dim_y;
    uint16_t block_dim_z;
    /* Context the kernel runs in: names the event file. */
    uint16_t context_index;
    /* kvtrace_launch_kind. */
    uint8_t launch_kind;
    /* kvtrace_launch_flag bits. */
    uint8_t launch_flags;
    /* CUdevice. */
    uint16_t device_ordinal;
    uint32_t reserved;
} kvtrace_launch_record;

/* What the launcher tells the injector: the file named by KVTRACE_CONFIG. */
typedef struct {
    /* KVTRACE_CONFIG_MAGIC. */
    uint64_t magic;
    uint32_t abi_version;
    /* sizeof this struct. */
    uint32_t struct_size;
    /* Block events in the ring; a power of two. */
    uint32_t ring_events;
    /* Launch records in the table; a power of two. */
    uint32_t launch_records;
    /* kvtrace_config_flag bits. */
    uint32_t flags;
    /* kvtrace_bind_mode. */
    uint32_t bind_mode;
    /* Longest sleep of the drain thread between two looks, microseconds. */
    uint32_t drain_interval_us;
    uint32_t target_count;
    /* Absolute directory for raw files. NUL-terminated, as all texts here. */
    char output_dir[KVTRACE_PATH_BYTES];
    /* Absolute path of libsanitizer-public.so, or of the emulator's stand-in. */
    char sanitizer_library[KVTRACE_PATH_BYTES];
    /* Base names of target kernels, such as reshape_and_cache_flash_kernel. */
    char targets[KVTRACE_MAX_TARGETS][KVTRACE_NAME_BYTES];
} kvtrace_config;

/* The file kvtrace.switch in the output directory, which the launcher writes and the injector maps
 * if KVTRACE_CONFIG_SWITCHED is set. */
typedef struct {
    /* Raised by one to switch: even, record; odd, do not. The journal's recording_switched repeats
     * it once it holds for every launch that is yet to come. */
    uint64_t turn;
} kvtrace_switch;

/*
 * What the device callback gets as its userdata pointer: constant, in device memory that lives as
 * long as the context. One for each target function, and one for each launch stamp.
 */
typedef struct {
    /* KVTRACE_CALLBACK_DATA_MAGIC; anything else and the callback returns at once. */
    uint64_t magic;
    /* kvtrace_block_event[1 << capacity_log2] in host memory mapped into the device. */
    uint64_t ring_address;
    /* kvtrace_device_counters in device memory. */
    uint64_t counters_address;
    /* kvtrace_ring_control in mapped host memory. */
    uint64_t control_address;
    /* uint32_t[1 << capacity_log2] in mapped host memory: 1 + sequence / capacity of a drop. */
    uint64_t drop_hints_address;
    uint32_t capacity_log2;
    /* Not zero: the ring is filled once, space never comes back. */
    uint32_t one_shot;
    uint32_t launch_stamp;
    uint32_t kernel_slot;
    /* kvtrace_store_mode. */
    uint32_t store_mode;
    uint32_t reserved;
} kvtrace_callback_data;

/* Device memory, one for each context. */
typedef struct {
    /* Next sequence: every block that entered, and every recorded store, took one. */
    uint64_t reserved_count;
    /* Last known drained_count, so that the mapped word is read only when this says full. */
    uint64_t drained_cache;
} kvtrace_device_counters;

/* Mapped host memory, one for each context. Each word has its own cache line. */
typedef struct {
    /* Written by the drain thread: sequences below it are free again. */
    uint64_t drained_count;
    uint64_t padding[7];
    /* Added to by the device: events that found no space. */
    uint64_t dropped_count;
    /* Those of dropped_count that were stores. */
    uint64_t dropped_store_count;
    uint64_t more_padding[6];
} kvtrace_ring_control;
