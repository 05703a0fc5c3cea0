#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/plan/plan_report.h"

namespace penstock {
namespace {

constexpr double kWidth = 380, kHeight = 250, kLeft = 70, kTop = 46, kGap = 110;

struct Point {
  double x = 0, y = 0;
};

struct Axis {
  double min = 1, max = 10;  // logarithmic, both above zero

  // 0 to 1.
  double At(double value) const {
    if (max <= min) return 0.5;
    return std::log(std::clamp(value, min, max) / min) / std::log(max / min);
  }
};

// A chart with logarithmic axes, one line and maybe a limit across it.
struct Chart {
  std::string title, x_label, y_label;
  std::vector<Point> points;
  double limit = 0;  // of y; 0: none
  std::string limit_label;
};

Axis Around(const std::vector<double>& values) {
  Axis axis{.min = 1e300, .max = 1e-300};
  for (const double value : values) {
    if (value <= 0) continue;
    axis.min = std::min(axis.min, value);
    axis.max = std::max(axis.max, value);
  }
  if (axis.max < axis.min) return {};
  if (axis.max == axis.min) return {axis.min / 2, axis.max * 2};
  return axis;
}

std::string Short(double value) {
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

std::string Text(Point at, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at.x, at.y,
                     anchor, text);
}

std::string Draw(const Chart& chart, double left) {
  std::vector<double> xs, ys;
  for (const Point& point : chart.points) {
    xs.push_back(point.x);
    ys.push_back(point.y);
  }
  if (chart.limit > 0) ys.push_back(chart.limit);
  const Axis x = Around(xs), y = Around(ys);
  const auto place = [&](const Point& point) {
    return Point{left + x.At(point.x) * kWidth, kTop + (1 - y.At(point.y)) * kHeight};
  };
  std::string svg = Text({left, kTop - 22}, "start", chart.title);
  svg += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"frame\"/>\n",
                     left, kTop, kWidth, kHeight);
  std::string line;
  for (const Point& point : chart.points) {
    if (point.y <= 0) continue;
    const Point at = place(point);
    line += fmt::format("{:.1f},{:.1f} ", at.x, at.y);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n", at.x, at.y);
    svg += Text({at.x, at.y - 8}, "middle", Short(point.y));
    svg += Text({at.x, kTop + kHeight + 16}, "middle", Short(point.x));
  }
  svg += fmt::format("<polyline points=\"{}\"/>\n", line);
  if (chart.limit > 0) {
    const double at = place({x.min, chart.limit}).y;
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left,
                       at, left + kWidth, at);
    svg += Text({left + kWidth - 4, at - 4}, "end", chart.limit_label);
  }
  svg += Text({left + kWidth / 2, kTop + kHeight + 36}, "middle", chart.x_label);
  return svg + Text({left, kTop - 6}, "start", chart.y_label);
}

}  // namespace

std::string PlanSvg(const PlanRequest& request, const CapacityPlan& plan) {
  Chart capacity{.title = fmt::format("{} blocks on {}", plan.blocks, request.hardware.name),
                 .x_label = "tokens a sequence",
                 .y_label = "sequences at once"};
  for (const ContextCapacity& row : plan.contexts) {
    capacity.points.push_back(
        {static_cast<double>(row.context_tokens), static_cast<double>(row.sequences)});
  }
  Chart speed{
      .title = fmt::format("decode at {:.0f} tokens of context",
                           request.traffic.prompt_tokens + request.traffic.answer_tokens / 2),
      .x_label = "batch",
      .y_label = "ms between tokens",
      .limit = request.targets.token_s * 1e3,
      .limit_label = "target"};
  for (const DecodePoint& point : plan.decode) {
    speed.points.push_back({static_cast<double>(point.batch), point.step_s * 1e3});
  }
  const double width = 2 * kWidth + kGap + kLeft + 30, height = kTop + kHeight + 50;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">\n"
             "<style>text{{font:12px sans-serif;fill:#444}}.frame{{fill:none;stroke:#bbb}}"
             "polyline{{fill:none;stroke:#1668a7;stroke-width:2}}circle{{fill:#1668a7}}"
             "line{{stroke:#b3401f;stroke-dasharray:5 4}}</style>\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width, height) +
         Draw(capacity, kLeft) + Draw(speed, kLeft + kWidth + kGap) + "</svg>\n";
}

}  // namespace penstock
