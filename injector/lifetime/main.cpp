/*
 * One cell of the lifetime matrix, in a process of its own, which may fault or hang:
 *
 *     kvtrace_lifetime CALLBACK BINDING NEIGHBOURS GRAPH [POINT] SANITIZER_LIBRARY
 *
 * CALLBACK no_op, pointer_read, counter, full_event; BINDING target-only, per-launch,
 * every-function, re-bound, never; NEIGHBOURS same-module, other-module; GRAPH kernels, memsets;
 * POINT when the module is patched, see patch_point.h: then a launch of 2,048 blocks comes first.
 * Prints one JSON line, which says what the cell came to; exit status 2 for arguments that it does
 * not know. The subscriber's library is beside the program, with its name.
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "patch_point.h"
#include "program.h"
#include "region.h"
#include "subscriber.h"

namespace {

using kvtrace_lifetime::Cell;

bool is_one_of(const std::string &word, const char *first, const char *second) {
    return word == first || word == second;
}

/* Beside the program, and named after it. */
std::string subscriber_path() {
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    const std::string path(program, length > 0 ? static_cast<size_t>(length) : 0);
    const size_t name = path.rfind('/') + 1;
    return path.substr(0, name) + "lib" + path.substr(name) + ".so";
}

bool make_region(std::string *error) {
    void *wanted = reinterpret_cast<void *>(KVTRACE_LIFETIME_ADDRESS);
    const size_t bytes = (sizeof(kvtrace_lifetime_region) + 0xfffff) & ~size_t{0xfffff};
    void *region = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (region != wanted) {
        *error = std::string("shared region: ") + std::strerror(errno);
        return false;
    }
    return kvtrace_lifetime::map_region(region, bytes, error);
}

/* An outcome that is none of the callback's. */
[[noreturn]] void give_up(const std::string &why) {
    std::printf("{\"error\": \"\", \"failure\": \"%s\"}\n", why.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

} // namespace

int main(int argc, char **argv) {
    const bool has_point = argc == 7;
    kvtrace_lifetime::Point point = kvtrace_lifetime::Point::kModuleLoad;
    if ((argc != 6 && !has_point) || !is_one_of(argv[3], "same-module", "other-module") ||
        !is_one_of(argv[4], "kernels", "memsets") ||
        (has_point && !kvtrace_lifetime::find_point(argv[5], &point))) {
        std::fprintf(stderr, "usage: kvtrace_lifetime CALLBACK BINDING same-module|other-module "
                             "kernels|memsets [POINT] SANITIZER_LIBRARY\n");
        return 2;
    }
    const std::string callback = argv[1];
    const Cell cell = {callback == "pointer_read", std::string(argv[3]) == "same-module",
                       std::string(argv[4]) == "memsets",
                       has_point ? kvtrace_lifetime::kFirstBlocks : 0};
    const std::string library = subscriber_path();
    const std::string words = callback + " " + argv[2] + " " +
                              (has_point ? argv[5] : "module-load") + " " + argv[argc - 1];
    setenv(KVTRACE_LIFETIME_CELL, words.c_str(), 1);
    setenv("CUDA_INJECTION64_PATH", library.c_str(), 1);
    std::string error;
    if (!make_region(&error)) {
        give_up(error);
    }
    void *subscriber = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (subscriber == nullptr) {
        give_up("the driver did not load " + library);
    }
    auto before_replay = reinterpret_cast<decltype(&kvtrace_lifetime_before_replay)>(
        dlsym(subscriber, "kvtrace_lifetime_before_replay"));
    auto report = reinterpret_cast<decltype(&kvtrace_lifetime_report)>(
        dlsym(subscriber, "kvtrace_lifetime_report"));
    const uint32_t replays = kvtrace_lifetime::run(cell, before_replay, &error);
    report(error.c_str(), replays,
           kvtrace_lifetime::kNodes * kvtrace_lifetime::kReplays + cell.first_blocks);
    /* After a fault the driver's own end may hang. */
    std::_Exit(0);
}
