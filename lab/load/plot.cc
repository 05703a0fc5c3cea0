#include "lab/plot/plot.h"

#include <algorithm>

#include "lab/load/report.h"

namespace penstock {
namespace {

constexpr size_t kBins = 200;

PlotCurve CurveOf(const char* name, std::vector<double> ms) {
  std::ranges::sort(ms);
  return {.name = name, .points = CumulativeShares(ms)};
}

PlotChart LatencyChart(const LoadOutcome& outcome) {
  std::vector<double> ttft, tpot, itl, e2el;
  for (const LoadRecord& record : outcome.records) {
    if (record.result != LoadResult::kGood) continue;
    ttft.push_back(record.ttft_ms());
    if (record.output_tokens > 1) tpot.push_back(record.tpot_ms());
    for (size_t i = 1; i < record.pieces.size(); ++i) itl.push_back(record.pieces[i].gap_ms);
    e2el.push_back(record.e2el_ms());
  }
  return {.title = "share of requests, or of gaps, up to a latency",
          .x = {.unit = " ms", .logarithmic = true, .min = 0.1},
          .y = {.unit = " %", .min = 0, .max = 100, .ticks = {0, 50, 90, 99}},
          .curves = {CurveOf("TTFT", std::move(ttft)), CurveOf("TPOT", std::move(tpot)),
                     CurveOf("ITL", std::move(itl)), CurveOf("E2EL", std::move(e2el))}};
}

// A bin of 0.1, 0.2, 0.5, 1, 2 ... s, of which at most kBins cover the run.
double BinSeconds(double seconds) {
  double bin_s = 0.1;
  for (int step = 0; seconds / bin_s > kBins; ++step) bin_s *= step % 3 == 1 ? 2.5 : 2;
  return bin_s;
}

// Each curve in percent of its own maximum, which the legend names.
PlotChart ThroughputChart(const LoadOutcome& outcome) {
  const LoadSeries series = SeriesOf(outcome, BinSeconds(outcome.seconds));
  const auto curve = [&](const std::vector<double>& values, const char* name) {
    double max = 1e-9;
    for (const double value : values) max = std::max(max, value);
    PlotCurve drawn{.name = name, .note = fmt::format("max {:.4g}/s", max / series.bin_s)};
    for (size_t i = 0; i < values.size(); ++i) {
      drawn.points.push_back(
          {(static_cast<double>(i) + 0.5) * series.bin_s, 100 * values[i] / max});
    }
    return drawn;
  };
  return {
      .title = fmt::format("throughput over time, in steps of {:g} s", series.bin_s),
      .x = {.unit = " s",
            .min = 0,
            .max = series.bin_s * static_cast<double>(series.output_tokens.size())},
      .y = {.unit = " %", .min = 0, .max = 100},
      .curves = {curve(series.output_tokens, "output tokens"), curve(series.requests, "requests")}};
}

}  // namespace

absl::Status WriteLoadPlot(const LoadDescription& description, const LoadOutcome& outcome,
                           const std::string& path) {
  const std::string title =
      fmt::format("{}, {}: {}", description.model, description.backend, description.workload);
  return WritePlot(PlotSvg(title, {LatencyChart(outcome), ThroughputChart(outcome)}), path);
}

}  // namespace penstock
