#include "lab/replay/cache_plot.h"

#include "lab/plot/plot.h"

namespace penstock {
namespace {

PlotChart ChartOf(const CachePlot& plot) {
  PlotChart chart{.title = plot.title + ": hit rate by blocks of capacity",
                  .x = {.label = "blocks", .logarithmic = true},
                  .y = {.min = 0},
                  .curves = {},
                  .limits = {{plot.ideal, "unlimited capacity"}}};
  for (const auto& [blocks, rate] : plot.lines.front().points) chart.x.ticks.push_back(blocks);
  chart.x.min = chart.x.ticks.front();
  chart.x.max = chart.x.ticks.back();
  for (const CachePlotLine& line : plot.lines) {
    PlotCurve curve{.name = line.name};
    for (const auto& [blocks, rate] : line.points) curve.points.push_back({blocks, rate});
    chart.curves.push_back(std::move(curve));
  }
  return chart;
}

}  // namespace

absl::Status WriteCachePlots(std::span<const CachePlot> plots, const std::string& path) {
  std::vector<PlotChart> charts;
  for (const CachePlot& plot : plots) {
    if (plot.lines.empty() || plot.lines.front().points.empty()) continue;
    charts.push_back(ChartOf(plot));
  }
  return WritePlot(PlotSvg("", charts), path);
}

}  // namespace penstock
