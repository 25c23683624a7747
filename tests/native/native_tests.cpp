/*
 * Host tests of the injector's parts that need no CUDA. `native_tests DIR` runs all of them with
 * DIR for files; it prints what failed and exits 1.
 */
#include "../../injector/emulator/host_platform.h"

#include "../../injector/device/block_event.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "config.h"
#include "event_ring.h"
#include "handle_table.h"
#include "journal.h"
#include "kernel_names.h"
#include "launch_ring.h"
#include "record_file.h"
#include "recording_switch.h"
#include "step_stamp.h"

namespace {

using namespace kvtrace;

int failures = 0;
std::string directory;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::printf("%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);      \
            ++failures;                                                                            \
        }                                                                                          \
    } while (0)

/* The memory that a context has on a GPU. */
struct Ring {
    explicit Ring(uint32_t capacity_log2, bool one_shot)
        : events(size_t{1} << capacity_log2), hints(size_t{1} << capacity_log2) {
        data.magic = KVTRACE_CALLBACK_DATA_MAGIC;
        data.ring_address = reinterpret_cast<uintptr_t>(events.data());
        data.counters_address = reinterpret_cast<uintptr_t>(&counters);
        data.control_address = reinterpret_cast<uintptr_t>(&control);
        data.drop_hints_address = reinterpret_cast<uintptr_t>(hints.data());
        data.capacity_log2 = capacity_log2;
        data.one_shot = one_shot ? 1 : 0;
        reader.attach(events.data(), &control, hints.data(), 1u << capacity_log2, one_shot);
    }

    void enter(uint64_t grid_id) {
        kvtrace_platform::block.grid_id = grid_id;
        kvtrace_on_block_enter(&data, 0x1000);
    }

    /* As the threads of a block do at one store instruction. */
    void store(uint64_t grid_id, uint64_t address, uint32_t threads = 1) {
        kvtrace_platform::block.grid_id = grid_id;
        for (uint32_t thread = 0; thread < threads; ++thread) {
            kvtrace_platform::block.thread_index = thread;
            kvtrace_on_store(&data, 0x1080, address + 16 * thread, 16);
        }
        kvtrace_platform::block.thread_index = 0;
    }

    std::vector<kvtrace_block_event> events;
    std::vector<uint32_t> hints;
    kvtrace_device_counters counters = {};
    kvtrace_ring_control control = {};
    kvtrace_callback_data data = {};
    EventRing reader;
};

constexpr uint64_t kSecond = 1000000000;

void takes_events_in_sequence_over_many_laps() {
    Ring ring(4, false);
    const kvtrace_block_event *first = nullptr;
    EXPECT(ring.reader.peek(&first, 0) == 0);
    for (uint64_t i = 0; i < 1000; ++i) {
        ring.enter(i);
        EXPECT(ring.reader.peek(&first, 0) == 1);
        EXPECT(first->grid_id == i);
        EXPECT(first->sequence_low == static_cast<uint16_t>(i));
        ring.reader.consume(1);
    }
    EXPECT(ring.reader.dropped_count() == 0);
}

void does_not_take_a_torn_event() {
    Ring ring(4, false);
    const kvtrace_block_event *first = nullptr;
    ring.enter(7);
    for (uint16_t kvtrace_block_event::*tag :
         {&kvtrace_block_event::tag0, &kvtrace_block_event::tag1, &kvtrace_block_event::tag2,
          &kvtrace_block_event::tag3}) {
        const uint16_t whole = ring.events[0].*tag;
        ring.events[0].*tag = 0;
        EXPECT(ring.reader.peek(&first, 0) == 0);
        ring.events[0].*tag = whole;
    }
    EXPECT(ring.reader.peek(&first, 0) == 1);
}

void ignores_foreign_callback_data() {
    Ring ring(4, false);
    ring.data.store_mode = KVTRACE_STORES_ALL;
    ring.data.magic = 0;
    ring.enter(1);
    ring.store(1, 0x5000);
    kvtrace_on_block_enter(nullptr, 0x1000);
    kvtrace_on_store(nullptr, 0x1080, 0x5000, 16);
    EXPECT(ring.counters.reserved_count == 0);
}

void only_the_leader_enters_a_block() {
    Ring ring(4, false);
    kvtrace_platform::block.thread_index = 1;
    ring.enter(1);
    kvtrace_platform::block.thread_index = 0;
    EXPECT(ring.counters.reserved_count == 0);
}

/* A store is an event of the same ring, told apart by its kind, and as whole as any other. */
void packs_a_store_beside_its_block_entry() {
    Ring ring(4, false);
    ring.data.store_mode = KVTRACE_STORES_LEADER;
    ring.data.kernel_slot = 5;
    ring.data.launch_stamp = 77;
    kvtrace_platform::block = {9, 640, 3, 2, 1, 131, 0};
    kvtrace_on_block_enter(&ring.data, 0x1000);
    kvtrace_platform::block.globaltimer_ns = 672;
    kvtrace_on_store(&ring.data, 0x1080, 0x7f0012345678, 8);
    const kvtrace_block_event *first = nullptr;
    EXPECT(ring.reader.peek(&first, 0) == 2);
    const kvtrace_block_event &entry = first[0];
    const kvtrace_block_event &store = first[1];
    EXPECT(entry.event_kind == KVTRACE_EVENT_BLOCK_ENTER && entry.pc == 0x1000);
    EXPECT(entry.address == 0 && entry.access_size == 0 && entry.thread_index == 0);
    EXPECT(entry.gpu_globaltimer_ns == 640);
    EXPECT(store.event_kind == KVTRACE_EVENT_GLOBAL_STORE && store.pc == 0x1080);
    EXPECT(store.address == 0x7f0012345678 && store.access_size == 8 && store.thread_index == 0);
    EXPECT(store.gpu_globaltimer_ns == 672);
    EXPECT(store.block_idx_x == 3 && store.block_idx_y == 2 && store.block_idx_z == 1);
    EXPECT(store.grid_id == 9 && store.sm_id == 131);
    EXPECT(store.kernel_slot == 5 && store.launch_stamp == 77);
    EXPECT(entry.sequence_low == 0 && store.sequence_low == 1);
    EXPECT(store.tag0 == 1 && store.tag1 == 1 && store.tag2 == 1 && store.tag3 == 1);
    kvtrace_platform::block = {};
}

void records_the_stores_that_were_asked_for() {
    const auto threads_recorded = [](uint32_t mode) {
        Ring ring(4, false);
        ring.data.store_mode = mode;
        ring.store(1, 0x5000, 8);
        const kvtrace_block_event *first = nullptr;
        const size_t count = ring.reader.peek(&first, 0);
        for (size_t i = 0; i < count; ++i) {
            EXPECT(first[i].thread_index == i && first[i].address == 0x5000 + 16 * i);
        }
        return count;
    };
    EXPECT(threads_recorded(KVTRACE_STORES_NONE) == 0);
    EXPECT(threads_recorded(KVTRACE_STORES_LEADER) == 1);
    EXPECT(threads_recorded(KVTRACE_STORES_ALL) == 8);
}

/* All drops are counted, and those that were stores once more: also by a reader that outlives the
 * memory. */
void counts_dropped_stores_apart() {
    for (const bool one_shot : {false, true}) {
        Ring ring(4, one_shot);
        ring.data.store_mode = KVTRACE_STORES_ALL;
        ring.enter(1);
        ring.store(1, 0x5000, 20);
        ring.enter(2);
        EXPECT(ring.reader.dropped_count() == 6);
        EXPECT(ring.reader.dropped_store_count() == 5);
        ring.reader.detach();
        ring.control = {};
        EXPECT(ring.reader.dropped_count() == 6);
        EXPECT(ring.reader.dropped_store_count() == 5);
    }
}

void counts_drops_and_skips_their_holes() {
    Ring ring(4, false);
    const kvtrace_block_event *first = nullptr;
    for (uint64_t i = 0; i < 20; ++i) {
        ring.enter(i);
    }
    EXPECT(ring.reader.dropped_count() == 4);
    EXPECT(ring.reader.peek(&first, 0) == 16);
    ring.reader.consume(16);
    /* Four holes: not before they are old enough, for an event may still be on its way. */
    EXPECT(ring.reader.peek(&first, kSecond) == 0);
    EXPECT(ring.reader.holes_skipped() == 0);
    EXPECT(ring.reader.peek(&first, kSecond + kSecond / 1000) == 0);
    EXPECT(ring.reader.holes_skipped() == 0);
    EXPECT(ring.reader.peek(&first, 2 * kSecond) == 0);
    EXPECT(ring.reader.holes_skipped() == 4);
    ring.enter(20);
    EXPECT(ring.reader.peek(&first, 2 * kSecond) == 1);
    EXPECT(first->grid_id == 20 && first->sequence_low == 20);
}

/* Holes between events cost one wait, not one each. */
void skips_scattered_holes_after_one_wait() {
    Ring ring(6, false);
    const kvtrace_block_event *first = nullptr;
    for (uint64_t i = 0; i < 64; ++i) {
        ring.enter(i);
    }
    EXPECT(ring.reader.peek(&first, 0) == 64);
    uint64_t entered = 64;
    /* Each time one place comes back, two blocks enter: one event, one hole. */
    for (uint64_t i = 0; i < 20; ++i) {
        ring.reader.consume(1);
        ring.enter(entered++);
        ring.enter(entered++);
    }
    ring.reader.consume(44);
    const uint64_t dropped = ring.reader.dropped_count();
    EXPECT(dropped > 0);
    uint64_t taken = 0;
    EXPECT(ring.reader.is_waiting_for_hole() || ring.reader.peek(&first, kSecond) > 0);
    for (uint64_t now : {kSecond, 2 * kSecond}) {
        while (const size_t count = ring.reader.peek(&first, now)) {
            taken += count;
            ring.reader.consume(count);
        }
    }
    EXPECT(ring.reader.holes_skipped() == dropped);
    EXPECT(64 + taken + dropped == entered);
    EXPECT(!ring.reader.is_waiting_for_hole());
}

void keeps_the_first_events_of_a_one_shot_ring() {
    Ring ring(4, true);
    const kvtrace_block_event *first = nullptr;
    for (uint64_t i = 0; i < 100; ++i) {
        ring.enter(i);
    }
    EXPECT(ring.reader.peek(&first, 0) == 16);
    EXPECT(first[15].grid_id == 15);
    ring.reader.consume(16);
    ring.enter(100);
    EXPECT(ring.reader.peek(&first, 9 * kSecond) == 0);
    EXPECT(ring.reader.dropped_count() == 85);
    EXPECT(ring.counters.reserved_count == 101);
}

void remembers_drops_after_the_memory_is_gone() {
    Ring ring(4, true);
    const kvtrace_block_event *first = nullptr;
    for (uint64_t i = 0; i < 18; ++i) {
        ring.enter(i);
    }
    ring.reader.detach();
    EXPECT(ring.reader.dropped_count() == 2);
    EXPECT(ring.reader.peek(&first, 0) == 0);
}

/* Blocks enter and store on several threads while a reader drains too slowly: every block and every
 * store is either one whole event or one drop, and sequences step by one but for the drops. */
void loses_nothing_under_load() {
    constexpr uint64_t kThreads = 4;
    constexpr uint64_t kEach = 30000;
    Ring ring(8, false);
    ring.data.store_mode = KVTRACE_STORES_LEADER;
    std::atomic<bool> done{false};
    std::vector<uint64_t> seen(kThreads * kEach);
    uint64_t taken = 0;
    uint64_t stores_taken = 0;
    uint64_t gaps = 0;
    std::thread reader([&] {
        uint16_t expected = 0;
        uint64_t now = 0;
        uint64_t idle = 0;
        while (idle < 1000) {
            const kvtrace_block_event *first = nullptr;
            const size_t count = ring.reader.peek(&first, now);
            now += kSecond / 1000;
            /* Only from the end on: what was dropped last is skipped some looks after it. */
            idle = count == 0 && done.load() ? idle + 1 : 0;
            for (size_t i = 0; i < count; ++i) {
                gaps += static_cast<uint16_t>(first[i].sequence_low - expected);
                expected = static_cast<uint16_t>(first[i].sequence_low + 1);
                ++seen[first[i].grid_id];
                stores_taken += first[i].event_kind == KVTRACE_EVENT_GLOBAL_STORE ? 1 : 0;
            }
            ring.reader.consume(count);
            taken += count;
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < kThreads; ++t) {
        writers.emplace_back([&ring, t] {
            for (uint64_t i = 0; i < kEach; ++i) {
                if (i % 3 == 0) {
                    ring.store(t * kEach + i, 0x5000);
                } else {
                    ring.enter(t * kEach + i);
                }
                if (i % 64 == 0) {
                    std::this_thread::yield();
                }
            }
        });
    }
    for (std::thread &writer : writers) {
        writer.join();
    }
    done.store(true);
    reader.join();
    uint64_t twice = 0;
    for (const uint64_t times : seen) {
        twice += times > 1 ? 1 : 0;
    }
    EXPECT(twice == 0);
    EXPECT(taken + ring.reader.dropped_count() == kThreads * kEach);
    EXPECT(stores_taken + ring.reader.dropped_store_count() == kThreads * kEach / 3);
    EXPECT(ring.reader.holes_skipped() == ring.reader.dropped_count());
    /* Drops after the last event leave no gap behind. */
    EXPECT(gaps <= ring.reader.dropped_count());
}

void launch_ring_loses_nothing_under_load() {
    constexpr uint64_t kThreads = 4;
    constexpr uint64_t kEach = 20000;
    LaunchRing ring;
    EXPECT(ring.allocate(64, false));
    std::atomic<uint64_t> accepted{0};
    std::atomic<bool> done{false};
    std::vector<uint64_t> last(kThreads, 0);
    uint64_t taken = 0;
    uint64_t backwards = 0;
    std::thread reader([&] {
        const kvtrace_launch_record *first = nullptr;
        while (true) {
            const bool was_done = done.load();
            const size_t count = ring.peek(&first);
            for (size_t i = 0; i < count; ++i) {
                backwards += first[i].grid_id <= last[first[i].thread_id] ? 1 : 0;
                last[first[i].thread_id] = first[i].grid_id;
            }
            ring.consume(count);
            taken += count;
            if (was_done && count == 0) {
                return;
            }
        }
    });
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < kThreads; ++t) {
        writers.emplace_back([&ring, &accepted, t] {
            for (uint64_t i = 1; i <= kEach; ++i) {
                kvtrace_launch_record record = {};
                record.thread_id = static_cast<uint32_t>(t);
                record.grid_id = i;
                accepted += ring.append(record) ? 1 : 0;
            }
        });
    }
    for (std::thread &writer : writers) {
        writer.join();
    }
    done.store(true);
    reader.join();
    EXPECT(backwards == 0);
    EXPECT(taken == accepted.load());
    EXPECT(taken + ring.dropped_count() == kThreads * kEach);
}

/* The reader may free places between a writer's two looks at the ring: that is no full ring. */
void launch_ring_with_room_drops_nothing() {
    constexpr uint64_t kThreads = 4;
    constexpr uint64_t kEach = 100000;
    LaunchRing ring;
    EXPECT(ring.allocate(1u << 19, false));
    std::atomic<bool> done{false};
    uint64_t taken = 0;
    std::thread reader([&] {
        const kvtrace_launch_record *first = nullptr;
        while (taken < kThreads * kEach && !done.load()) {
            const size_t count = ring.peek(&first);
            ring.consume(count);
            taken += count;
        }
    });
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < kThreads; ++t) {
        writers.emplace_back([&ring] {
            for (uint64_t i = 0; i < kEach; ++i) {
                ring.append(kvtrace_launch_record{});
            }
        });
    }
    for (std::thread &writer : writers) {
        writer.join();
    }
    done.store(ring.dropped_count() != 0);
    reader.join();
    EXPECT(ring.dropped_count() == 0);
    EXPECT(taken == kThreads * kEach);
}

void one_shot_launch_ring_keeps_the_first() {
    LaunchRing ring;
    const kvtrace_launch_record *first = nullptr;
    EXPECT(ring.allocate(4, true));
    for (uint64_t i = 0; i < 10; ++i) {
        kvtrace_launch_record record = {};
        record.grid_id = i;
        record.grid_dim_x = 5;
        record.grid_dim_y = 2;
        record.grid_dim_z = 1;
        EXPECT(ring.append(record) == (i < 4));
        if (i == 1) {
            EXPECT(ring.peek(&first) == 2);
            ring.consume(2);
        }
    }
    EXPECT(ring.peek(&first) == 2);
    EXPECT(first->grid_id == 2);
    ring.consume(2);
    EXPECT(ring.peek(&first) == 0);
    EXPECT(ring.dropped_count() == 6);
    EXPECT(ring.dropped_blocks() == 60);
}

kvtrace_file_header event_header() {
    kvtrace_file_header header = {};
    header.magic = KVTRACE_EVENTS_MAGIC;
    header.abi_version = KVTRACE_ABI_VERSION;
    header.record_size = sizeof(kvtrace_block_event);
    return header;
}

long size_of_file(const std::string &path) {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0 ? status.st_size : -1;
}

uint32_t flags_of_file(const std::string &path) {
    kvtrace_file_header header = {};
    std::FILE *stream = std::fopen(path.c_str(), "rb");
    EXPECT(stream != nullptr && std::fread(&header, sizeof(header), 1, stream) == 1);
    std::fclose(stream);
    return header.flags;
}

void record_file_is_header_and_records() {
    const std::string path = directory + "/records.kvt";
    RecordFile file;
    EXPECT(file.create(path.c_str(), event_header()));
    EXPECT(size_of_file(path) == 64);
    const kvtrace_block_event events[3] = {};
    EXPECT(file.append(events, 3));
    file.set_dropped(2);
    file.add_flags(KVTRACE_FILE_CLOSED);
    EXPECT(file.write_header());
    EXPECT(size_of_file(path) == 64 + 3 * 64);
    kvtrace_file_header header = {};
    std::FILE *stream = std::fopen(path.c_str(), "rb");
    EXPECT(stream != nullptr && std::fread(&header, sizeof(header), 1, stream) == 1);
    std::fclose(stream);
    EXPECT(header.record_count == 3 && header.dropped_count == 2);
    EXPECT(header.flags == KVTRACE_FILE_CLOSED && header.host_monotonic_ns > 0);
    file.remove_flags(KVTRACE_FILE_CLOSED);
    EXPECT(file.write_header() && flags_of_file(path) == 0);
    RecordFile second;
    EXPECT(!second.create(path.c_str(), event_header()));
}

/* A full disk must be an answer, not a signal. */
void record_file_survives_a_full_disk() {
    signal(SIGXFSZ, SIG_IGN);
    rlimit before = {};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit tiny = {64 + 2 * 64 + 10, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &tiny);
    RecordFile file;
    EXPECT(file.create((directory + "/full.kvt").c_str(), event_header()));
    const kvtrace_block_event events[2] = {};
    EXPECT(file.append(events, 2));
    EXPECT(!file.append(events, 1));
    EXPECT(file.record_count() == 2);
    EXPECT(file.write_header());
    setrlimit(RLIMIT_FSIZE, &before);
}

kvtrace_config valid_config() {
    kvtrace_config config = {};
    config.magic = KVTRACE_CONFIG_MAGIC;
    config.abi_version = KVTRACE_ABI_VERSION;
    config.struct_size = sizeof(config);
    config.ring_events = 4096;
    config.launch_records = 256;
    config.target_count = 1;
    std::snprintf(config.output_dir, sizeof(config.output_dir), "/tmp");
    std::snprintf(config.sanitizer_library, sizeof(config.sanitizer_library), "/lib.so");
    std::snprintf(config.targets[0], sizeof(config.targets[0]), "reshape_and_cache_flash_kernel");
    return config;
}

bool reads_config(const kvtrace_config &config, size_t bytes, std::string *error) {
    const std::string path = directory + "/config";
    std::FILE *stream = std::fopen(path.c_str(), "wb");
    std::fwrite(&config, bytes, 1, stream);
    std::fclose(stream);
    char text[2048] = "";
    kvtrace_config found = {};
    const bool read = read_config(path.c_str(), &found, text, sizeof(text));
    *error = text;
    return read;
}

void config_is_checked() {
    std::string error;
    EXPECT(reads_config(valid_config(), sizeof(kvtrace_config), &error));
    EXPECT(!reads_config(valid_config(), 100, &error) && error.find("too short") != error.npos);
    kvtrace_config config = valid_config();
    config.abi_version += 1;
    EXPECT(!reads_config(config, sizeof(config), &error) &&
           error.find("another version") != error.npos);
    config = valid_config();
    config.magic = 0;
    EXPECT(!reads_config(config, sizeof(config), &error));
    config = valid_config();
    config.ring_events = 1000;
    EXPECT(!reads_config(config, sizeof(config), &error) &&
           error.find("powers of two") != error.npos);
    config = valid_config();
    std::memset(config.output_dir, 'a', sizeof(config.output_dir));
    EXPECT(!reads_config(config, sizeof(config), &error));
    config = valid_config();
    config.target_count = KVTRACE_MAX_TARGETS + 1;
    EXPECT(!reads_config(config, sizeof(config), &error));
    config = valid_config();
    config.flags = KVTRACE_CONFIG_SWITCHED;
    EXPECT(reads_config(config, sizeof(config), &error));
    config.flags |= KVTRACE_CONFIG_NO_STAMPS;
    EXPECT(!reads_config(config, sizeof(config), &error) && error.find("stamps") != error.npos);
    char text[2048];
    EXPECT(!read_config((directory + "/absent").c_str(), &config, text, sizeof(text)));
}

void set_switch(const std::string &path, uint64_t turn, size_t bytes) {
    const kvtrace_switch asked = {turn};
    std::FILE *stream = std::fopen(path.c_str(), "r+b");
    stream = stream != nullptr ? stream : std::fopen(path.c_str(), "wb");
    std::fwrite(&asked, bytes, 1, stream);
    std::fclose(stream);
}

void recording_follows_its_switch() {
    const std::string path = directory + "/kvtrace.switch";
    RecordingSwitch absent;
    EXPECT(!absent.open(path.c_str()) && !absent.follow() && !absent.is_off());
    set_switch(path, 0, 3);
    RecordingSwitch torn;
    EXPECT(!torn.open(path.c_str()) && !torn.follow());
    set_switch(path, 0, sizeof(kvtrace_switch));
    RecordingSwitch followed;
    EXPECT(followed.open(path.c_str()) && !followed.follow() && !followed.is_off());
    set_switch(path, 1, sizeof(kvtrace_switch));
    EXPECT(!followed.is_off());
    EXPECT(followed.follow() && followed.is_off() && followed.turn() == 1 && !followed.follow());
    followed.count_passed(7);
    followed.count_passed(1);
    EXPECT(followed.launches_passed() == 2 && followed.blocks_passed() == 8);
    set_switch(path, 4, sizeof(kvtrace_switch));
    EXPECT(followed.follow() && !followed.is_off() && followed.turn() == 4);
}

void store_mode_follows_the_flags() {
    kvtrace_config config = valid_config();
    config.flags = KVTRACE_CONFIG_ONE_SHOT;
    EXPECT(store_mode(config) == KVTRACE_STORES_NONE);
    config.flags = KVTRACE_CONFIG_WRITES | KVTRACE_CONFIG_EMULATED;
    EXPECT(store_mode(config) == KVTRACE_STORES_LEADER);
    config.flags = KVTRACE_CONFIG_ALL_WRITES;
    EXPECT(store_mode(config) == KVTRACE_STORES_ALL);
    config.flags = KVTRACE_CONFIG_WRITES | KVTRACE_CONFIG_ALL_WRITES;
    EXPECT(store_mode(config) == KVTRACE_STORES_ALL);
}

void a_thread_without_a_step_is_in_the_latest_one() {
    const auto seen_by = [](const auto &body) {
        uint32_t seen = 0;
        std::thread([&] { seen = body(); }).join();
        return seen;
    };
    const auto look = [] { return current_step_stamp(); };
    EXPECT(look() == 0);
    kvtrace_set_step(7);
    EXPECT(look() == 7 && seen_by(look) == 7);
    EXPECT(seen_by([&] {
               kvtrace_set_step(8);
               return look();
           }) == 8);
    /* This thread has a step of its own; a thread that has none follows whoever was last. */
    EXPECT(look() == 7 && seen_by(look) == 8);
    kvtrace_set_step(0);
    EXPECT(look() == 0 && seen_by(look) == 0);
    EXPECT(seen_by([&] {
               kvtrace_set_step(9);
               kvtrace_set_step(0);
               return look();
           }) == 0);
}

void target_names_are_whole_identifiers() {
    kvtrace_config config = valid_config();
    const char *vllm =
        "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDa"
        "taTypeE0EEEvPKT_S5_PT0_S7_PKlllllliiiPKfSB_i";
    EXPECT(is_target_name(config, vllm));
    EXPECT(is_target_name(config, "reshape_and_cache_flash_kernel"));
    EXPECT(!is_target_name(config, "reshape_and_cache_flash_kernel_v2"));
    EXPECT(!is_target_name(config, "_ZN4vllm33reshape_and_cache_flash_kernel_v2E"));
    EXPECT(!is_target_name(config, "_ZN4vllm130reshape_and_cache_flash_kernel"));
    EXPECT(!is_target_name(config, ""));
    std::snprintf(config.targets[0], sizeof(config.targets[0]), "reshape_and_cache_kernel");
    EXPECT(!is_target_name(config, vllm));
    EXPECT(is_target_name(config, "_ZN4vllm24reshape_and_cache_kernelIttEE"));
    EXPECT(!image_names_target(config, vllm, std::strlen(vllm)));
    EXPECT(image_names_target(config, "\0\0reshape_and_cache_kernel\0", 27));
}

void handle_table_forgets_unloaded_modules() {
    HandleTable table;
    EXPECT(table.allocate());
    FunctionInfo info = {};
    std::vector<char> handles(40000);
    EXPECT(!table.find(&handles[0], &info));
    table.insert(&handles[0], &handles[100], {3, true});
    table.insert(&handles[1], &handles[200], {kNotTarget, false});
    EXPECT(table.find(&handles[0], &info) && info.kernel_slot == 3 && info.is_patched);
    EXPECT(table.find(&handles[1], &info) && info.kernel_slot == kNotTarget && !info.is_patched);
    table.forget_module(&handles[100]);
    EXPECT(!table.find(&handles[0], &info));
    EXPECT(table.find(&handles[1], &info));
    table.insert(&handles[0], &handles[300], {5, false});
    EXPECT(table.find(&handles[0], &info) && info.kernel_slot == 5);
    /* More handles than places: some are not remembered, none is remembered wrongly. */
    for (uint32_t i = 0; i < handles.size(); ++i) {
        table.insert(&handles[i], nullptr, {i, false});
    }
    for (uint32_t i = 0; i < handles.size(); ++i) {
        EXPECT(!table.find(&handles[i], &info) || info.kernel_slot == i);
    }
}

/* The Python side of this test parses the lines. */
void journal_lines_are_json() {
    Journal journal;
    EXPECT(journal.create((directory + "/journal.jsonl").c_str()));
    JournalLine line("test");
    journal.write(
        line.add("number", uint64_t{1} << 63).add("yes", true).add("text", "a\"b\\c\nd\xff"));
    const std::string longest(5000, 'x');
    JournalLine cut("cut");
    journal.write(cut.add("text", longest.c_str()).add("after", uint64_t{1}));
    JournalLine nothing_fits("cut");
    for (int i = 0; i < 200; ++i) {
        nothing_fits.add("another_field_name", uint64_t{1234567890123});
    }
    journal.write(nothing_fits);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::printf("usage: native_tests DIR\n");
        return 2;
    }
    directory = argv[1];
    takes_events_in_sequence_over_many_laps();
    does_not_take_a_torn_event();
    ignores_foreign_callback_data();
    only_the_leader_enters_a_block();
    packs_a_store_beside_its_block_entry();
    records_the_stores_that_were_asked_for();
    counts_dropped_stores_apart();
    counts_drops_and_skips_their_holes();
    skips_scattered_holes_after_one_wait();
    keeps_the_first_events_of_a_one_shot_ring();
    remembers_drops_after_the_memory_is_gone();
    loses_nothing_under_load();
    launch_ring_loses_nothing_under_load();
    launch_ring_with_room_drops_nothing();
    one_shot_launch_ring_keeps_the_first();
    record_file_is_header_and_records();
    record_file_survives_a_full_disk();
    config_is_checked();
    recording_follows_its_switch();
    store_mode_follows_the_flags();
    a_thread_without_a_step_is_in_the_latest_one();
    target_names_are_whole_identifiers();
    handle_table_forgets_unloaded_modules();
    journal_lines_are_json();
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
