#include <algorithm>
#include <cmath>
#include <fstream>

#include "lab/load/report.h"

namespace penstock {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 620;
constexpr double kLeft = 60;
constexpr double kPlotWidth = 560;
constexpr double kPlotHeight = 220;
constexpr double kCdfTop = 40;
constexpr double kSeriesTop = 340;
constexpr size_t kPoints = 200;
constexpr double kLeastMs = 0.1;

struct Curve {
  const char* name;
  const char* colour;
  std::vector<double> sorted_ms;
};

std::vector<Curve> CurvesOf(const LoadOutcome& outcome) {
  std::vector<Curve> curves = {{"TTFT", "#1f77b4", {}},
                               {"TPOT", "#2ca02c", {}},
                               {"ITL", "#ff7f0e", {}},
                               {"E2EL", "#9467bd", {}}};
  for (const LoadRecord& record : outcome.records) {
    if (record.result != LoadResult::kGood) continue;
    curves[0].sorted_ms.push_back(record.ttft_ms());
    if (record.output_tokens > 1) curves[1].sorted_ms.push_back(record.tpot_ms());
    for (size_t i = 1; i < record.pieces.size(); ++i) {
      curves[2].sorted_ms.push_back(record.pieces[i].gap_ms);
    }
    curves[3].sorted_ms.push_back(record.e2el_ms());
  }
  for (Curve& curve : curves) std::sort(curve.sorted_ms.begin(), curve.sorted_ms.end());
  return curves;
}

std::string Label(double x, double y, const char* anchor, const std::string& text,
                  const char* colour = "black") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n",
                     x, y, anchor, colour, text);
}

std::string Rule(double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1, y1,
      x2, y2);
}

std::string Line(const std::string& points, const char* colour) {
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", colour, points);
}

// The share of values up to each number of milliseconds, on a logarithmic axis of whole decades.
std::string DrawCdf(const std::vector<Curve>& curves) {
  double max = 10 * kLeastMs;
  for (const Curve& curve : curves) {
    if (!curve.sorted_ms.empty()) max = std::max(max, curve.sorted_ms.back());
  }
  max = std::pow(10, std::ceil(std::log10(max)));
  const auto x_of = [&](double ms) {
    const double share = std::log(std::max(ms, kLeastMs) / kLeastMs) / std::log(max / kLeastMs);
    return kLeft + kPlotWidth * share;
  };
  const auto y_of = [](double share) { return kCdfTop + kPlotHeight * (1 - share); };
  std::string svg;
  for (double ms = kLeastMs; ms <= max * 1.001; ms *= 10) {
    svg += Rule(x_of(ms), y_of(1), x_of(ms), y_of(0));
    svg += Label(x_of(ms), y_of(0) + 16, "middle", fmt::format("{:g} ms", ms));
  }
  for (const double share : {0.0, 0.5, 0.9, 0.99}) {
    svg += Rule(kLeft, y_of(share), kLeft + kPlotWidth, y_of(share));
    svg += Label(kLeft - 6, y_of(share) + 4, "end", fmt::format("{:g} %", 100 * share));
  }
  double row = kCdfTop + 12;
  for (const Curve& curve : curves) {
    std::string points;
    for (size_t i = 0; i <= kPoints && !curve.sorted_ms.empty(); ++i) {
      const double share = static_cast<double>(i) / kPoints;
      const auto at = static_cast<size_t>(share * static_cast<double>(curve.sorted_ms.size() - 1));
      points += fmt::format("{:.1f},{:.1f} ", x_of(curve.sorted_ms[at]), y_of(share));
    }
    svg += Line(points, curve.colour);
    svg += Label(kLeft + kPlotWidth + 12, row, "start", curve.name, curve.colour);
    row += 16;
  }
  return svg + Label(kLeft, kCdfTop - 10, "start", "share of requests, or of gaps, up to a time");
}

// A bin of 0.1, 0.2, 0.5, 1, 2 ... s, of which at most kPoints cover the run.
double BinSeconds(double seconds) {
  double bin_s = 0.1;
  for (int step = 0; seconds / bin_s > kPoints; ++step) bin_s *= step % 3 == 1 ? 2.5 : 2;
  return bin_s;
}

std::string DrawSeries(const LoadOutcome& outcome) {
  const LoadSeries series = SeriesOf(outcome, BinSeconds(outcome.seconds));
  const double end_s = series.bin_s * static_cast<double>(series.output_tokens.size());
  const auto y_of = [](double share) { return kSeriesTop + kPlotHeight * (1 - share); };
  const auto draw = [&](const std::vector<double>& values, const char* colour, const char* name,
                        double row) {
    const double max = std::max(1e-9, *std::max_element(values.begin(), values.end()));
    std::string points;
    for (size_t i = 0; i < values.size(); ++i) {
      const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(values.size());
      points += fmt::format("{:.1f},{:.1f} ", kLeft + kPlotWidth * at, y_of(values[i] / max));
    }
    return Line(points, colour) + Label(kLeft + kPlotWidth + 12, row, "start", name, colour) +
           Label(kLeft + kPlotWidth + 12, row + 14, "start",
                 fmt::format("most: {:.4g}/s", max / series.bin_s), colour);
  };
  std::string svg;
  for (int i = 0; i <= 4; ++i) {
    const double x = kLeft + kPlotWidth * i / 4;
    svg += Rule(x, y_of(1), x, y_of(0));
    svg += Label(x, y_of(0) + 16, "middle", fmt::format("{:.3g} s", end_s * i / 4));
  }
  svg += Rule(kLeft, y_of(0), kLeft + kPlotWidth, y_of(0));
  svg += draw(series.output_tokens, "#1f77b4", "output tokens", kSeriesTop + 12);
  svg += draw(series.requests, "#d62728", "requests", kSeriesTop + 52);
  return svg + Label(kLeft, kSeriesTop - 10, "start",
                     fmt::format("over time, in steps of {:g} s", series.bin_s));
}

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '&')
      escaped += "&amp;";
    else
      escaped += c;
  }
  return escaped;
}

}  // namespace

absl::Status WriteLoadPlot(const LoadDescription& description, const LoadOutcome& outcome,
                           const std::string& path) {
  std::ofstream file(path);
  file << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kWidth, kHeight);
  file << Label(kLeft, 14, "start",
                Escaped(fmt::format("{}, {}: {}", description.model, description.backend,
                                    description.workload)));
  file << DrawCdf(CurvesOf(outcome)) << DrawSeries(outcome) << "</svg>\n";
  file.close();
  if (!file) return FailedPrecondition("cannot write the plot {}", path);
  return absl::OkStatus();
}

}  // namespace penstock
