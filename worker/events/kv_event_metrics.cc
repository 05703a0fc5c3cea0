#include "worker/events/kv_event_metrics.h"

namespace penstock {
namespace {

prometheus::Counter& Events(MetricsRegistry& registry, const std::string& type) {
  return registry.Counter("penstock_kv_events_total", "KV events published, by type.",
                          {{"type", type}});
}

}  // namespace

KvEventMetrics::KvEventMetrics(MetricsRegistry& registry)
    : stored(Events(registry, "stored")),
      removed(Events(registry, "removed")),
      cleared(Events(registry, "cleared")),
      batches(registry.Counter("penstock_kv_event_batches_total",
                               "Batches of KV events published, each with a sequence number.")),
      dropped(registry.Counter(
          "penstock_kv_event_batches_dropped_total",
          "Batches of KV events that were not sent to a subscriber because it is too slow.")),
      replays(registry.Counter("penstock_kv_event_replays_total",
                               "Requests for earlier KV events that were answered.")),
      refused(registry.Counter(
          "penstock_kv_event_connections_refused_total",
          "Connections to the port of KV events that were closed: too many, silent or garbage.")),
      subscribers(
          registry.Gauge("penstock_kv_event_subscribers", "Connected subscribers of KV events.")) {}

void KvEventMetrics::Count(const KvEvent& event) {
  if (std::holds_alternative<KvBlocksStored>(event)) {
    stored.Increment();
  } else if (std::holds_alternative<KvBlocksRemoved>(event)) {
    removed.Increment();
  } else {
    cleared.Increment();
  }
}

}  // namespace penstock
