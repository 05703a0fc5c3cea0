#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace penstock {

struct CachePlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (blocks, hit rate), capacities ascending
};
struct CachePlot {
  std::string title;
  double ideal = 0;  // hit rate with room for everything
  std::vector<CachePlotLine> lines;
};

// Hit rate over capacity (logarithmic), one picture under the other, as an SVG file.
absl::Status WriteCachePlots(std::span<const CachePlot> plots, const std::string& path);

}  // namespace penstock
