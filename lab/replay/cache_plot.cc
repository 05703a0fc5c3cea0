#include "lab/replay/cache_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

namespace penstock {
namespace {

constexpr double kWidth = 640, kHeight = 360, kMargin = 48;
constexpr std::array<const char*, 5> kColours = {"#c0392b", "#2471a3", "#1e8449", "#b7950b",
                                                 "#7d3c98"};

// From a plot's values to its pixels.
struct Scale {
  double blocks_min = 1, blocks_max = 10;
  double rate_max = 1;
  double top = 0;

  double X(double blocks) const {
    const double share = std::log(blocks / blocks_min) / std::log(blocks_max / blocks_min);
    return kMargin + share * (kWidth - 3 * kMargin);
  }
  double Y(double rate) const {
    return top + kHeight - kMargin - rate / rate_max * (kHeight - 2 * kMargin);
  }
};

Scale ScaleOf(const CachePlot& plot, double top) {
  Scale scale{.rate_max = plot.ideal > 0 ? plot.ideal * 1.05 : 1, .top = top};
  const auto& points = plot.lines.front().points;
  scale.blocks_min = points.front().first;
  scale.blocks_max = std::max(points.back().first, scale.blocks_min * 2);
  return scale;
}

std::string Text(double x, double y, const std::string& text, const char* colour = "#333") {
  return fmt::format("<text x='{:.1f}' y='{:.1f}' fill='{}'>{}</text>\n", x, y, colour, text);
}

std::string Draw(const CachePlot& plot, double top) {
  const Scale scale = ScaleOf(plot, top);
  std::string svg = Text(kMargin, top + 24, plot.title + ": hit rate by blocks of capacity");
  const double left = kMargin, right = kWidth - 2 * kMargin;
  for (int i = 0; i <= 5; ++i) {
    const double rate = scale.rate_max * i / 5;
    svg += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='#ddd'/>\n", left,
                       right, scale.Y(rate), scale.Y(rate));
    svg += Text(6, scale.Y(rate) + 4, fmt::format("{:.2f}", rate));
  }
  svg += fmt::format(
      "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='#333' stroke-dasharray='4'/>\n", left,
      right, scale.Y(plot.ideal), scale.Y(plot.ideal));
  for (const auto& [blocks, rate] : plot.lines.front().points) {
    svg += Text(scale.X(blocks) - 12, top + kHeight - kMargin + 18, fmt::format("{:.0f}", blocks));
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string points;
    for (const auto& [blocks, rate] : plot.lines[i].points) {
      points += fmt::format("{:.1f},{:.1f} ", scale.X(blocks), scale.Y(rate));
    }
    svg += fmt::format("<polyline fill='none' stroke='{}' stroke-width='2' points='{}'/>\n", colour,
                       points);
    svg += Text(right + 8, top + kMargin + 18 * static_cast<double>(i), plot.lines[i].name, colour);
  }
  return svg;
}

}  // namespace

absl::Status WriteCachePlots(std::span<const CachePlot> plots, const std::string& path) {
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n",
      kWidth, kHeight * static_cast<double>(plots.size()));
  for (size_t i = 0; i < plots.size(); ++i) {
    if (plots[i].lines.empty() || plots[i].lines.front().points.empty()) continue;
    svg += Draw(plots[i], kHeight * static_cast<double>(i));
  }
  std::ofstream file(path);
  file << svg << "</svg>\n";
  file.close();
  if (!file) return Unavailable("the plot could not be written to {}", path);
  return absl::OkStatus();
}

}  // namespace penstock
