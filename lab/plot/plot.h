#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// Charts as SVG pictures.

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string label = {};  // beside the point; a label makes it a dot
};

struct PlotAxis {
  std::string label = {};
  std::string unit = {};           // behind the numbers of the ticks: " ms"
  bool logarithmic = false;        // values up to 0 are drawn at `min`
  std::optional<double> min = {};  // absent: the least value
  std::optional<double> max = {};  // absent: the greatest value; if logarithmic, its next decade
  std::vector<double> ticks = {};  // empty: the decades, or six equal steps
};

struct PlotCurve {
  std::string name;
  std::vector<PlotPoint> points;
  bool line = true;       // joins the points
  std::string note = {};  // a second line of the legend
};

struct PlotLimit {
  double y = 0;
  std::string label;
};

struct PlotChart {
  std::string title;
  PlotAxis x;
  PlotAxis y;
  std::vector<PlotCurve> curves;
  std::vector<PlotLimit> limits = {};  // dashed lines across
};

// The charts, one below the other, under a title that may be empty.
std::string PlotSvg(const std::string& title, const std::vector<PlotChart>& charts);
absl::Status WritePlot(const std::string& svg, const std::string& path);

// The share in percent of values up to each value, from ascending values.
template <class Value>
std::vector<PlotPoint> CumulativeShares(const std::vector<Value>& ascending) {
  constexpr size_t kPoints = 200;
  std::vector<PlotPoint> points;
  for (size_t i = 0; i <= kPoints && !ascending.empty(); ++i) {
    const double share = static_cast<double>(i) / kPoints;
    const auto at = static_cast<size_t>(share * static_cast<double>(ascending.size() - 1));
    points.push_back({static_cast<double>(ascending[at]), 100 * share});
  }
  return points;
}

}  // namespace penstock
