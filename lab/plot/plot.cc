#include "lab/plot/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

namespace penstock {
namespace {

constexpr double kWidth = 800, kLeft = 70, kPlotWidth = 520;
constexpr double kChartHeight = 330, kTop = 30, kPlotHeight = 240;
constexpr double kTitleHeight = 24, kRowHeight = 15;
constexpr int kSteps = 5;
constexpr std::array<const char*, 8> kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                                 "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"};

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

struct Style {
  const char* anchor = "start";
  const char* colour = "#333";
};

std::string Text(double x, double y, const std::string& text, Style style = {}) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
                     x, y, style.anchor, style.colour, Escaped(text));
}

std::string Line(PlotPoint from, PlotPoint to, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", from.x,
                     from.y, to.x, to.y, style);
}

constexpr char kGrid[] = "stroke=\"#ddd\"";
constexpr char kDashed[] = "stroke=\"#333\" stroke-dasharray=\"4\"";

std::string Number(double value) {
  if (std::abs(value) >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (std::abs(value) >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

// From an axis' values to shares of its length, 0 to 1.
class Scale {
 public:
  Scale(const PlotAxis& axis, const std::vector<double>& values)
      : logarithmic_(axis.logarithmic), min_(axis.min.value_or(Least(axis, values))) {
    const double greatest = values.empty() ? min_ : *std::ranges::max_element(values);
    max_ = axis.max.value_or(logarithmic_ ? DecadeAbove(greatest) : greatest);
    if (max_ <= min_) max_ = logarithmic_ ? min_ * 10 : min_ + 1;
  }

  double At(double value) const {
    const double inside = std::clamp(value, min_, max_);
    return logarithmic_ ? std::log(inside / min_) / std::log(max_ / min_)
                        : (inside - min_) / (max_ - min_);
  }

  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (logarithmic_) {
      for (double tick = min_; tick <= max_ * 1.001; tick *= 10) ticks.push_back(tick);
    } else {
      for (int i = 0; i <= kSteps; ++i) ticks.push_back(min_ + (max_ - min_) * i / kSteps);
    }
    return ticks;
  }

 private:
  double DecadeAbove(double value) const {
    return min_ * std::pow(10, std::ceil(std::log10(std::max(value / min_, 10.0)) - 1e-9));
  }
  // The least value; if logarithmic, the decade below the least positive one.
  static double Least(const PlotAxis& axis, const std::vector<double>& values) {
    if (!axis.logarithmic) return values.empty() ? 0 : *std::ranges::min_element(values);
    double least = 1e300;
    for (const double value : values) {
      if (value > 0) least = std::min(least, value);
    }
    return least == 1e300 ? 1 : std::pow(10, std::floor(std::log10(least)));
  }

  bool logarithmic_;
  double min_;
  double max_;
};

// One chart whose upper edge is `top`.
class Drawing {
 public:
  Drawing(const PlotChart& chart, double top)
      : chart_(chart), top_(top), x_(chart.x, Values(false)), y_(chart.y, Values(true)) {}

  std::string Svg() const {
    std::string svg = Text(kLeft, top_ + 14, chart_.title);
    svg += Axes();
    for (const PlotLimit& limit : chart_.limits) {
      const double y = Y(limit.y);
      svg += Line({kLeft, y}, {kLeft + kPlotWidth, y}, kDashed);
      svg += Text(kLeft + kPlotWidth - 4, y - 4, limit.label, {.anchor = "end"});
    }
    double row = top_ + kTop + 12;
    for (size_t i = 0; i < chart_.curves.size(); ++i) {
      const char* colour = kColours[i % kColours.size()];
      svg += Curve(chart_.curves[i], colour);
      for (const std::string& text : {chart_.curves[i].name, chart_.curves[i].note}) {
        if (text.empty()) continue;
        svg += Text(kLeft + kPlotWidth + 12, row, text, {.colour = colour});
        row += kRowHeight;
      }
    }
    return svg;
  }

 private:
  std::vector<double> Values(bool vertical) const {
    std::vector<double> values;
    for (const PlotCurve& curve : chart_.curves) {
      for (const PlotPoint& point : curve.points) values.push_back(vertical ? point.y : point.x);
    }
    if (vertical) {
      for (const PlotLimit& limit : chart_.limits) values.push_back(limit.y);
    }
    return values;
  }
  double X(double value) const { return kLeft + kPlotWidth * x_.At(value); }
  double Y(double value) const { return top_ + kTop + kPlotHeight * (1 - y_.At(value)); }

  std::string Axes() const {
    const double below = top_ + kTop + kPlotHeight;
    std::string svg;
    for (const double tick : chart_.x.ticks.empty() ? x_.Ticks() : chart_.x.ticks) {
      svg += Line({X(tick), top_ + kTop}, {X(tick), below}, kGrid);
      svg += Text(X(tick), below + 16, Number(tick) + chart_.x.unit, {.anchor = "middle"});
    }
    for (const double tick : chart_.y.ticks.empty() ? y_.Ticks() : chart_.y.ticks) {
      svg += Line({kLeft, Y(tick)}, {kLeft + kPlotWidth, Y(tick)}, kGrid);
      svg += Text(kLeft - 6, Y(tick) + 4, Number(tick) + chart_.y.unit, {.anchor = "end"});
    }
    svg += Text(kLeft + kPlotWidth / 2, below + 34, chart_.x.label, {.anchor = "middle"});
    return svg + Text(kLeft, top_ + kTop - 4, chart_.y.label);
  }

  std::string Curve(const PlotCurve& curve, const char* colour) const {
    std::string line, dots;
    for (const PlotPoint& point : curve.points) {
      const double x = X(point.x), y = Y(point.y);
      line += fmt::format("{:.1f},{:.1f} ", x, y);
      if (point.label.empty() && curve.line) continue;
      dots +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
      dots += Text(x + 5, y - 6, point.label, {.colour = colour});
    }
    if (!curve.line) return dots;
    return fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", colour, line) +
           dots;
  }

  const PlotChart& chart_;
  const double top_;
  const Scale x_;
  const Scale y_;
};

}  // namespace

std::string PlotSvg(const std::string& title, const std::vector<PlotChart>& charts) {
  const double begin = title.empty() ? 0 : kTitleHeight;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth, begin + kChartHeight * static_cast<double>(charts.size()));
  if (!title.empty()) svg += Text(kLeft, 16, title);
  for (size_t i = 0; i < charts.size(); ++i) {
    svg += Drawing(charts[i], begin + kChartHeight * static_cast<double>(i)).Svg();
  }
  return svg + "</svg>\n";
}

absl::Status WritePlot(const std::string& svg, const std::string& path) {
  std::ofstream file(path, std::ios::trunc);
  file << svg;
  file.close();
  if (!file) return FailedPrecondition("--plot={}: the file cannot be written", path);
  return absl::OkStatus();
}

}  // namespace penstock
