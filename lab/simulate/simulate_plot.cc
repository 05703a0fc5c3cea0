#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "lab/simulate/simulate.h"

namespace penstock {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 400;
constexpr double kLeft = 60;
constexpr double kTop = 20;
constexpr double kPlotWidth = 430;
constexpr double kPlotHeight = 320;
constexpr double kLeastSeconds = 0.01;
constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                    "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

double XOf(double seconds, double max) {
  const double share =
      std::log(std::max(seconds, kLeastSeconds) / kLeastSeconds) / std::log(max / kLeastSeconds);
  return kLeft + kPlotWidth * std::min(share, 1.0);
}

double YOf(double share) { return kTop + kPlotHeight * (1 - share); }

std::string Line(const std::vector<float>& sorted, double max, const std::string& colour) {
  std::string points;
  constexpr size_t kPoints = 200;
  for (size_t i = 0; i <= kPoints && !sorted.empty(); ++i) {
    const double share = static_cast<double>(i) / kPoints;
    const auto at = static_cast<size_t>(share * static_cast<double>(sorted.size() - 1));
    points += fmt::format("{:.1f},{:.1f} ", XOf(sorted[at], max), YOf(share));
  }
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", colour, points);
}

std::string Axes(double max) {
  std::string out;
  for (double seconds = kLeastSeconds; seconds <= max * 1.001; seconds *= 10) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g} s</text>\n",
        XOf(seconds, max), YOf(1), YOf(0), YOf(0) + 18, seconds);
  }
  for (const double share : {0.0, 0.5, 0.9, 1.0}) {
    out += fmt::format(
        "<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{3}\" y=\"{2:.1f}\" text-anchor=\"end\">{4:.0f} %</text>\n",
        kLeft, kLeft + kPlotWidth, YOf(share), kLeft - 6, 100 * share);
  }
  return out;
}

}  // namespace

absl::Status WriteSimulationPlot(const std::vector<SimulateRow>& rows, const std::string& path) {
  double longest = kLeastSeconds * 10;
  for (const SimulateRow& row : rows) {
    if (!row.result.ttft_s.empty()) longest = std::max<double>(longest, row.result.ttft_s.back());
  }
  const double max = std::pow(10, std::ceil(std::log10(longest)));
  std::ofstream file(path);
  file << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n{}<text x=\"{}\" y=\"{}\">time to the first token</text>\n",
      kWidth, kHeight, Axes(max), kLeft + kPlotWidth / 2 - 60, YOf(0) + 38);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string colour = kColours[i % std::size(kColours)];
    const SimulateRow& row = rows[i];
    file << Line(row.result.ttft_s, max, colour);
    file << fmt::format("<text x=\"{}\" y=\"{}\" fill=\"{}\">{}, {}, {} workers</text>\n",
                        kLeft + kPlotWidth + 12, kTop + 14 * (static_cast<double>(i) + 1), colour,
                        row.trace, row.policy, row.workers);
  }
  file << "</svg>\n";
  file.close();
  if (!file) return FailedPrecondition("cannot write the plot {}", path);
  return absl::OkStatus();
}

}  // namespace penstock
