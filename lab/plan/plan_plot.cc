#include <fmt/format.h>

#include "lab/plan/plan_report.h"
#include "lab/plot/plot.h"

namespace penstock {

std::string PlanSvg(const PlanRequest& request, const CapacityPlan& plan) {
  PlotCurve sequences;
  for (const ContextCapacity& row : plan.contexts) {
    sequences.points.push_back({static_cast<double>(row.context_tokens),
                                static_cast<double>(row.sequences),
                                fmt::format("{}", row.sequences)});
  }
  const PlotChart capacity{
      .title = fmt::format("sequences at once: {} blocks on {} x {}, {}", plan.decode.blocks,
                           plan.decode.worker.degree, request.hardware.name,
                           KvPageFormatName(request.kv_format)),
      .x = {.label = "tokens per sequence", .logarithmic = true},
      .y = {.logarithmic = true},
      .curves = {sequences}};
  PlotCurve steps;
  for (const DecodePoint& point : plan.steps) {
    const double ms = point.step_s * 1e3;
    steps.points.push_back({static_cast<double>(point.batch), ms, fmt::format("{:.3g}", ms)});
  }
  const PlotChart speed{.title = fmt::format("ms between tokens, at {:.0f} tokens of context",
                                             request.traffic.Context()),
                        .x = {.label = "batch", .logarithmic = true},
                        .y = {.logarithmic = true},
                        .curves = {steps},
                        .limits = {{request.targets.token_s * 1e3, "target"}}};
  return PlotSvg("", {capacity, speed});
}

}  // namespace penstock
