/* The Sanitizer's subscriber of the callback ladder: one callback for each module, as told. */
#include "ladder.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "sanitizer_api.h"

extern "C" const unsigned char kvtrace_ladder_fatbin[];

namespace {

kvtrace::SanitizerApi api;
const void *next_data = nullptr;
bool has_patches = false;
/* Never destroyed: the driver still calls back while the process ends. */
std::string &failure = *new std::string;
std::string &next_name = *new std::string;
/* Patched modules, and what is bound to the functions of each; NULL once it is. */
std::map<CUmodule, const void *> &unbound = *new std::map<CUmodule, const void *>;

bool check(SanitizerResult result, const char *call) {
    if (result != SANITIZER_SUCCESS && failure.empty()) {
        failure = std::string(call) + " failed: " + std::to_string(result);
    }
    return result == SANITIZER_SUCCESS;
}

bool names_target(const Sanitizer_ResourceModuleData &module) {
    return module.pCubin != nullptr &&
           memmem(module.pCubin, module.cubinSize, KVTRACE_LADDER_TARGET,
                  std::strlen(KVTRACE_LADDER_TARGET)) != nullptr;
}

void module_loaded(const Sanitizer_ResourceModuleData &module) {
    if (next_name.empty() || !names_target(module)) {
        return;
    }
    const std::string callback = "kvtrace_ladder_" + next_name;
    next_name.clear();
    has_patches = has_patches || check(api.add_patches(kvtrace_ladder_fatbin, module.context),
                                       "sanitizerAddPatches");
    if (has_patches &&
        check(api.patch_instructions(SANITIZER_INSTRUCTION_BLOCK_ENTER, module.module,
                                     callback.c_str()),
              "sanitizerPatchInstructions") &&
        check(api.patch_module(module.module), "sanitizerPatchModule")) {
        unbound[module.module] = next_data;
    }
}

/* Each image has one function. It is bound as it is loaded, or at its first launch if that was not
 * told; nothing is captured before. */
void bind(CUmodule module, CUfunction function) {
    const auto found = unbound.find(module);
    if (found != unbound.end() && found->second != nullptr &&
        check(api.set_callback_data(function, found->second), "sanitizerSetCallbackData")) {
        found->second = nullptr;
    }
}

void resource_changed(Sanitizer_CallbackId id, const void *data) {
    if (id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
        module_loaded(*static_cast<const Sanitizer_ResourceModuleData *>(data));
    } else if (id == SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED) {
        const auto &loaded = *static_cast<const Sanitizer_ResourceFunctionsLazyLoadedData *>(data);
        for (uint32_t i = 0; i < loaded.numFunctions; ++i) {
            bind(loaded.module, loaded.functions[i]);
        }
    }
}

/* By id: the Sanitizer also tells of what was not enabled, as soon as anything of a domain is. */
void SANITIZERAPI on_callback(void *, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                              const void *data) {
    if (domain == SANITIZER_CB_DOMAIN_LAUNCH) {
        const auto &launch = *static_cast<const Sanitizer_LaunchData *>(data);
        bind(launch.module, launch.function);
    } else if (domain == SANITIZER_CB_DOMAIN_RESOURCE) {
        resource_changed(id, data);
    }
}

struct Callback {
    const char *group;
    Sanitizer_CallbackDomain domain;
    uint32_t id;
};

/* Nodes too, although nobody handles them: bound data was only ever seen to arrive with them. */
constexpr Callback kCallbacks[] = {
    {"modules", SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED},
    {"modules", SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED},
    {"launches", SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN},
    {"graphs", SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN},
    {"nodes", SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN}};

/* All that the ladder needs, or the groups that the variable names, as the words of a text. */
bool is_wanted(const Callback &callback) {
    const char *asked = std::getenv(KVTRACE_LADDER_CALLBACKS);
    const std::string words = std::string(" ") + (asked != nullptr ? asked : "") + " ";
    return asked == nullptr ? std::strcmp(callback.group, "graphs") != 0
                            : words.find(std::string(" ") + callback.group + " ") != words.npos;
}

void subscribe() {
    Sanitizer_SubscriberHandle handle = nullptr;
    check(api.subscribe(&handle, on_callback, nullptr), "sanitizerSubscribe");
    for (const Callback &callback : kCallbacks) {
        if (is_wanted(callback)) {
            check(api.enable_callback(1, handle, callback.domain, callback.id),
                  "sanitizerEnableCallback");
        }
    }
}

} // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
    const char *library = std::getenv(KVTRACE_LADDER_SANITIZER);
    char error[256] = "";
    if (library == nullptr) {
        failure = KVTRACE_LADDER_SANITIZER " names no library";
    } else if (!api.load(library, error, sizeof(error))) {
        failure = error;
    } else {
        subscribe();
    }
    return 1;
}

void kvtrace_ladder_next(const char *name, const void *data) {
    next_name = name;
    next_data = data;
}

const char *kvtrace_ladder_failure() {
    if (failure.empty() && !next_name.empty()) {
        failure = "the module for " + next_name + " was not told of";
    }
    for (const auto &[module, data] : unbound) {
        if (failure.empty() && data != nullptr) {
            failure = "the function of a patched module was not bound";
        }
    }
    return failure.c_str();
}
