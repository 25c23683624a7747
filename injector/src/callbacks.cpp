#include "callbacks.h"

#include "contexts.h"
#include "failure.h"
#include "launches.h"
#include "modules.h"

namespace kvtrace {
namespace {

struct Wanted {
    Sanitizer_CallbackDomain domain;
    uint32_t id;
};

/* One id at a time: a whole domain would also bring what nobody handles, on every launch. */
constexpr Wanted kWanted[] = {
    {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED},
    {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING},
    {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED},
    {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING},
    {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED},
    {SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN},
    {SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED},
    {SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING},
    {SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN},
    {SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN},
};

/* Only if modules are to be patched there: every plain launch of the engine has one. */
constexpr Wanted kPatchingPoint = {SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END};

template <typename Data> const Data &as(const void *data) {
    return *static_cast<const Data *>(data);
}

void handle_resource(Injector *self, uint32_t id, const void *data) {
    switch (id) {
    case SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED:
        prepare_context(self, as<Sanitizer_ResourceContextData>(data).context);
        break;
    case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
        destroy_context(self, as<Sanitizer_ResourceContextData>(data).context);
        break;
    case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
        module_loaded(self, as<Sanitizer_ResourceModuleData>(data));
        break;
    case SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
        module_unloading(self, as<Sanitizer_ResourceModuleData>(data));
        break;
    case SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED:
        functions_loaded(self, as<Sanitizer_ResourceFunctionsLazyLoadedData>(data));
        break;
    default:
        break;
    }
}

void handle_launch(Injector *self, uint32_t id, const Sanitizer_LaunchData &launch) {
    if (id == SANITIZER_CBID_LAUNCH_END) {
        patch_after_launch(self, launch);
    } else {
        plain_launch(self, launch);
    }
}

void handle_graphs(Injector *self, uint32_t id, const void *data) {
    switch (id) {
    case SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED:
        graph_exec_created(self, as<Sanitizer_GraphExecData>(data));
        break;
    case SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING:
        graph_exec_destroying(self, as<Sanitizer_GraphExecData>(data));
        break;
    case SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN:
        graph_launch(self, as<Sanitizer_GraphLaunchData>(data));
        break;
    case SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN:
        graph_node_launch(self, as<Sanitizer_GraphNodeLaunchData>(data));
        break;
    default:
        break;
    }
}

/* Nothing is recorded, and no table exists, before the process has a context. */
bool is_recording(const Injector &self) {
    return self.context_count.load(std::memory_order_acquire) != 0 && self.launch_file.is_open();
}

void dispatch(Injector *self, Sanitizer_CallbackDomain domain, uint32_t id, const void *data) {
    if (domain == SANITIZER_CB_DOMAIN_RESOURCE) {
        handle_resource(self, id, data);
    } else if (!is_recording(*self)) {
        return;
    } else if (domain == SANITIZER_CB_DOMAIN_LAUNCH) {
        handle_launch(self, id, as<Sanitizer_LaunchData>(data));
    } else if (domain == SANITIZER_CB_DOMAIN_GRAPHS) {
        handle_graphs(self, id, data);
    }
}

/* The engine's own call is above us on the stack: nothing may be thrown into it. */
void SANITIZERAPI on_callback(void *userdata, Sanitizer_CallbackDomain domain,
                              Sanitizer_CallbackId id, const void *data) {
    auto *self = static_cast<Injector *>(userdata);
    if (!records_here() || !self->is_subscribed.load(std::memory_order_acquire)) {
        return;
    }
    try {
        dispatch(self, domain, id, data);
    } catch (...) {
        record_failure(KVTRACE_SITE_EXCEPTION, static_cast<uint32_t>(domain), "callback");
    }
}

} // namespace

bool subscribe(Injector *self) {
    Sanitizer_SubscriberHandle subscriber = nullptr;
    if (!check(self->api.subscribe(&subscriber, on_callback, self), KVTRACE_SITE_SUBSCRIBE,
               "another tool is subscribed?")) {
        return false;
    }
    const auto enable = [self, subscriber](const Wanted &wanted) {
        return check(self->api.enable_callback(1, subscriber, wanted.domain, wanted.id),
                     KVTRACE_SITE_ENABLE_CALLBACK, "enable callback");
    };
    for (const Wanted &wanted : kWanted) {
        if (!enable(wanted)) {
            return false;
        }
    }
    if (self->has_flag(KVTRACE_CONFIG_PATCH_AT_FIRST_LAUNCH_END) && !enable(kPatchingPoint)) {
        return false;
    }
    self->is_subscribed.store(true, std::memory_order_release);
    return true;
}

} // namespace kvtrace
