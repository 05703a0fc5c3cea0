#include "router/picker/picker_metrics.h"

namespace penstock {
namespace {

std::map<PickOutcome, prometheus::Counter*> Outcomes(MetricsRegistry& registry) {
  static const std::pair<PickOutcome, const char*> kNames[] = {
      {PickOutcome::kPicked, "picked"},      {PickOutcome::kBadRequest, "bad_request"},
      {PickOutcome::kTooLarge, "too_large"}, {PickOutcome::kNotReady, "not_ready"},
      {PickOutcome::kFull, "full"},          {PickOutcome::kLate, "late"},
      {PickOutcome::kExcluded, "excluded"},
  };
  std::map<PickOutcome, prometheus::Counter*> counters;
  for (const auto& [outcome, name] : kNames) {
    counters[outcome] = &registry.Counter(
        "penstock_picker_requests_total",
        "Requests that gateways asked the endpoint picker about, by outcome.", {{"outcome", name}});
  }
  return counters;
}

}  // namespace

PickerMetrics::PickerMetrics(MetricsRegistry& registry)
    : outcomes(Outcomes(registry)),
      streams(registry.Gauge("penstock_picker_streams",
                             "Open streams of gateways at the endpoint picker: one a request.")),
      decision(registry.Histogram(
          "penstock_picker_decision_seconds",
          "Time from a whole request body to the decision: queue, parsing, tokens, placement.",
          LatencyBuckets())),
      predicted(registry.Histogram("penstock_picker_predicted_ttft_seconds",
                                   "Predicted time to first token of picked requests.",
                                   LatencyBuckets())) {}

}  // namespace penstock
