#include "router/metrics/tenant_usage.h"

#include "router/metrics/request_metrics.h"

namespace penstock {

TenantUsage::TenantUsage(MetricsRegistry& registry) : registry_(registry) {
  MutexLock lock(mutex_);
  Of("");
}

void TenantUsage::Add(const std::string& tenant, const Request& request) {
  MutexLock lock(mutex_);
  Counters& counters = Of(tenant);
  counters.requests.find(request.status)->second->Increment();
  counters.prompt->Increment(request.prompt_tokens);
  counters.cached->Increment(request.cached_tokens);
  counters.output->Increment(request.output_tokens);
}

TenantUsage::Counters& TenantUsage::Of(const std::string& tenant) {
  const auto [found, added] = tenants_.try_emplace(tenant);
  Counters& counters = found->second;
  if (!added) return counters;
  for (const char* status : kStatuses) {
    counters.requests[status] =
        &registry_.Counter("penstock_tenant_requests_total", "Finished requests of a tenant.",
                           {{"tenant", tenant}, {"status", status}});
  }
  const auto tokens = [&](const char* kind) {
    return &registry_.Counter("penstock_tenant_tokens_total",
                              "Prompt tokens, those of them with cached KV, and output tokens.",
                              {{"tenant", tenant}, {"kind", kind}});
  };
  counters.prompt = tokens("prompt");
  counters.cached = tokens("cached");
  counters.output = tokens("output");
  return counters;
}

}  // namespace penstock
