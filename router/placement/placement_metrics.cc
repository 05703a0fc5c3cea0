#include "router/placement/placement_metrics.h"

namespace penstock {

PlacementMetrics::PlacementMetrics(MetricsRegistry& registry)
    : predicted_seconds(registry.Histogram("penstock_router_predicted_ttft_seconds",
                                           "Predicted time to the first token, in seconds.",
                                           LatencyBuckets())),
      real_seconds(registry.Histogram("penstock_router_placed_ttft_seconds",
                                      "Time from placement to the first token, in seconds.",
                                      LatencyBuckets())),
      error_ratio(registry.Histogram("penstock_router_ttft_prediction_error_ratio",
                                     "Relative error of the predicted time to the first token.",
                                     {0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5})),
      remote_prefills(
          registry.Counter("penstock_router_prompts_placed_total",
                           "Placed prompts, by the role that computes their uncached tokens.",
                           {{"computed_by", "prefill_worker"}})),
      local_prefills(
          registry.Counter("penstock_router_prompts_placed_total",
                           "Placed prompts, by the role that computes their uncached tokens.",
                           {{"computed_by", "decode_worker"}})) {}

void AddPrefixViewMetrics(MetricsRegistry& registry, const PrefixView& view) {
  prometheus::Gauge& blocks =
      registry.Gauge("penstock_router_index_blocks", "Distinct cached blocks in the prefix index.");
  prometheus::Gauge& stale = registry.Gauge("penstock_router_index_stale_workers",
                                            "Workers whose stream of KV events is stale.");
  prometheus::Counter& events =
      registry.Counter("penstock_router_index_events_total", "KV events processed.");
  prometheus::Counter& gaps =
      registry.Counter("penstock_router_index_gaps_total", "Gaps in streams of KV events.");
  prometheus::Counter& missing =
      registry.Counter("penstock_router_index_missing_blocks_total",
                       "Blocks in the index that a worker proved not to have.");
  prometheus::Counter& dropped = registry.Counter("penstock_router_index_dropped_blocks_total",
                                                  "Blocks not indexed because the index is full.");
  registry.BeforeScrape([&blocks, &stale, &events, &gaps, &missing, &dropped, &view] {
    const PrefixView::Figures figures = view.figures();
    blocks.Set(static_cast<double>(figures.blocks));
    stale.Set(static_cast<double>(figures.stale_workers));
    RaiseTo(events, figures.events);
    RaiseTo(gaps, figures.gaps);
    RaiseTo(missing, figures.missing);
    RaiseTo(dropped, figures.dropped);
  });
}

}  // namespace penstock
