#include "router/placement/placement_metrics.h"

namespace penstock {

PlacementMetrics::PlacementMetrics(MetricsRegistry& registry)
    : predicted_seconds(registry.Histogram("penstock_router_predicted_ttft_seconds",
                                           "Time to the first token as placement predicted it",
                                           LatencyBuckets())),
      real_seconds(registry.Histogram("penstock_router_placed_ttft_seconds",
                                      "Time from placement to the first token", LatencyBuckets())),
      error_ratio(registry.Histogram("penstock_router_ttft_prediction_error_ratio",
                                     "Difference of predicted and real, over real",
                                     {0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5})),
      split(registry.Counter("penstock_router_prompts_placed_total",
                             "Prompts by who computes what is not cached of them.",
                             {{"computed_by", "prefill_worker"}})),
      stayed(registry.Counter("penstock_router_prompts_placed_total",
                              "Prompts by who computes what is not cached of them.",
                              {{"computed_by", "decode_worker"}})) {}

namespace {

void Raise(prometheus::Counter& counter, uint64_t value) {
  counter.Increment(static_cast<double>(value) - counter.Value());
}

}  // namespace

void AddPrefixViewMetrics(MetricsRegistry& registry, const PrefixView& view) {
  prometheus::Gauge& blocks =
      registry.Gauge("penstock_router_index_blocks", "Blocks that some worker is known to have");
  prometheus::Gauge& stale = registry.Gauge("penstock_router_index_stale_workers",
                                            "Workers whose KV events have been silent");
  prometheus::Counter& events =
      registry.Counter("penstock_router_index_events_total", "KV events taken in");
  prometheus::Counter& gaps =
      registry.Counter("penstock_router_index_gaps_total", "Streams of KV events that had a gap");
  prometheus::Counter& missing =
      registry.Counter("penstock_router_index_missing_blocks_total",
                       "Blocks that a worker was believed to have and had not");
  prometheus::Counter& dropped = registry.Counter("penstock_router_index_dropped_blocks_total",
                                                  "Blocks not noted because the index is full");
  registry.BeforeScrape([&blocks, &stale, &events, &gaps, &missing, &dropped, &view] {
    const PrefixView::Figures figures = view.figures();
    blocks.Set(static_cast<double>(figures.blocks));
    stale.Set(static_cast<double>(figures.stale_workers));
    Raise(events, figures.events);
    Raise(gaps, figures.gaps);
    Raise(missing, figures.missing);
    Raise(dropped, figures.dropped);
  });
}

}  // namespace penstock
