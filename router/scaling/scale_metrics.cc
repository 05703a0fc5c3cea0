#include "router/scaling/scale_metrics.h"

namespace penstock {
namespace {

prometheus::Counter& Changes(MetricsRegistry& registry, const std::string& role,
                             const std::string& direction) {
  return registry.Counter("penstock_router_scale_changes_total",
                          "Changes of the wanted replicas that this router decided.",
                          {{"role", role}, {"direction", direction}});
}

}  // namespace

ScaleMetrics::Role::Role(MetricsRegistry& registry, const std::string& role)
    : replicas(registry.Gauge("penstock_router_scale_replicas",
                              "Replicas that this router wants for a role (--autoscale).",
                              {{"role", role}})),
      work(registry.Gauge("penstock_router_scale_work_workers",
                          "Workers of a role that the load keeps busy at SLO capacity.",
                          {{"role", role}})),
      ups(Changes(registry, role, "up")),
      downs(Changes(registry, role, "down")) {
  for (const char* reason : kScaleReasons) {
    reasons.push_back(&registry.Gauge("penstock_router_scale_reason",
                                      "1 for the reason of the present number of replicas.",
                                      {{"role", role}, {"reason", reason}}));
  }
}

void ScaleMetrics::Role::Show(const RoleDecision& decision) {
  replicas.Set(decision.replicas);
  work.Set(decision.work);
  for (size_t i = 0; i < reasons.size(); ++i) {
    reasons[i]->Set(i == static_cast<size_t>(decision.reason) ? 1 : 0);
  }
}

ScaleMetrics::ScaleMetrics(MetricsRegistry& registry)
    : prefill(registry, "prefill"),
      decode(registry, "decode"),
      leads(registry.Gauge("penstock_router_scale_leader",
                           "1 while this router decides the numbers of workers.")) {}

}  // namespace penstock
