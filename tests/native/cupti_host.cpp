/*
 * A process that is observed by CUPTI: it loads the observer as a driver would, and lets the
 * stand-in for CUPTI play activities.
 *
 *     cupti_host OBSERVER FAKE_CUPTI CASE
 */
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <vector>

#include "fake_cupti.h"

namespace {

constexpr const char *kTarget = "_Z30reshape_and_cache_flash_kernelIttEvPKT_";
constexpr const char *kGemm = "_ZN7cutlass6gemm_kEv";
/* As with CUPTI, a name lives as long as the process. */
constexpr const char *kNamesOfThreads[] = {"kernel_of_thread_0", "kernel_of_thread_1",
                                           "kernel_of_thread_2", "kernel_of_thread_3"};
constexpr int kKernelsOfThread = 5000;
/* More than the observer's flush period of the tests. */
constexpr unsigned kFlushedAfterUs = 500000;

void *observer = nullptr;
decltype(&fake_cupti_kernel) kernel = nullptr;
decltype(&fake_cupti_copy) copy = nullptr;
decltype(&fake_cupti_peer_copy) peer_copy = nullptr;
decltype(&fake_cupti_memset) set_memory = nullptr;
decltype(&fake_cupti_unfinished) unfinished = nullptr;

template <typename Function> void find(void *library, const char *name, Function *function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        std::fprintf(stderr, "cupti_host: %s: not found\n", name);
        std::exit(2);
    }
}

/* One plain launch, then 3 replays of a graph on two streams: 2 target nodes, a GEMM beside the
 * first, a memset; and a copy between replays. */
void play_replays() {
    const FakeActivity plain = {100, 200, 0, 0, 1, 7};
    kernel(&plain, kTarget, 16);
    for (uint32_t replay = 0; replay < 3; ++replay) {
        const uint64_t at = 1000 + replay * 1000;
        const uint32_t correlation = 10 + replay;
        const FakeActivity first = {at, at + 100, 51, 5, correlation, 7};
        const FakeActivity beside = {at + 50, at + 300, 52, 5, correlation, 8};
        const FakeActivity memset_node = {at + 300, at + 320, 53, 5, correlation, 7};
        const FakeActivity last = {at + 400, at + 500, 54, 5, correlation, 7};
        const FakeActivity after = {at + 600, at + 610, 0, 0, 100 + correlation, 7};
        kernel(&first, kTarget, 1);
        kernel(&beside, kGemm, 4);
        set_memory(&memset_node, 64);
        kernel(&last, kTarget, 1);
        copy(&after, 4096, 2);
    }
    const FakeActivity peer = {9000, 9100, 0, 0, 200, 7};
    peer_copy(&peer, 1 << 20);
}

void play_from_threads() {
    std::vector<std::thread> threads;
    for (uint32_t number = 0; number < std::size(kNamesOfThreads); ++number) {
        threads.emplace_back([number] {
            for (uint32_t i = 0; i < kKernelsOfThread; ++i) {
                const FakeActivity activity = {i + 1, i + 2, 0, 0, i, number};
                kernel(&activity, kNamesOfThreads[number], 1);
            }
        });
    }
    for (std::thread &one : threads) {
        one.join();
    }
}

void end_without_handlers() {
    void (*end)() = nullptr;
    find(observer, "kvtrace_end_recording", &end);
    end();
    end();
    _exit(0);
}

void fork_child_that_plays() {
    const pid_t child = fork();
    if (child == 0) {
        play_replays();
        std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
        _exit(3);
    }
}

int run(const char *name) {
    const auto is = [name](const char *one) { return std::strcmp(name, one) == 0; };
    if (is("nothing")) {
        return 0;
    }
    if (is("threads")) {
        play_from_threads();
        return 0;
    }
    play_replays();
    if (is("asked")) {
        end_without_handlers();
    } else if (is("fork")) {
        fork_child_that_plays();
    } else if (is("unfinished")) {
        unfinished();
    } else if (is("killed")) {
        usleep(kFlushedAfterUs);
        kill(getpid(), SIGKILL);
    }
    return 0;
}

} // namespace

int main(int count, char **arguments) {
    if (count != 4) {
        return 2;
    }
    observer = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    void *fake = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
    if (observer == nullptr || fake == nullptr) {
        std::fprintf(stderr, "cupti_host: %s\n", dlerror());
        return 2;
    }
    find(fake, "fake_cupti_kernel", &kernel);
    find(fake, "fake_cupti_copy", &copy);
    find(fake, "fake_cupti_peer_copy", &peer_copy);
    find(fake, "fake_cupti_memset", &set_memory);
    find(fake, "fake_cupti_unfinished", &unfinished);
    int (*initialize)() = nullptr;
    find(observer, "InitializeInjection", &initialize);
    return initialize() == 1 && initialize() == 1 ? run(arguments[3]) : 2;
}
