#include <fmt/format.h>

#include "lab/plot/plot.h"
#include "lab/simulate/simulate.h"

namespace penstock {

absl::Status WriteSimulationPlot(const std::vector<SimulateRow>& rows, const std::string& path) {
  PlotChart chart{.title = "share of requests up to a time to first token",
                  .x = {.unit = " s", .logarithmic = true, .min = 0.01},
                  .y = {.unit = " %", .min = 0, .max = 100, .ticks = {0, 50, 90, 100}}};
  for (const SimulateRow& row : rows) {
    chart.curves.push_back(
        {.name = fmt::format("{}, {}, {} workers", row.trace, row.policy, row.workers),
         .points = CumulativeShares(row.result.ttft_s)});
  }
  return WritePlot(PlotSvg("", {chart}), path);
}

}  // namespace penstock
