#include "base/metrics/open_metrics.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/metrics/traced_histogram.h"

namespace penstock {
namespace {

constexpr char kTotal[] = "_total";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Seconds(int64_t ms) { return fmt::format("{}.{:03}", ms / 1000, ms % 1000); }

// A bound of a bucket as a "canonical number": 1.0 and 2.5, but 1e+06 from a million on.
std::string Bound(double value) {
  if (std::isinf(value) || value != std::floor(value)) return Number(value);
  if (value < 1e6) return fmt::format("{:.1f}", value);
  const std::string text = fmt::format("{:.15e}", value);
  const size_t exponent = text.find('e');
  const size_t last = text.find_last_not_of("0.", exponent - 1);
  return text.substr(0, last + 1) + text.substr(exponent);
}

const char* TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "unknown";
  }
}

MetricsRegistry::Labels LabelsOf(const prometheus::ClientMetric& metric) {
  MetricsRegistry::Labels labels;
  for (const auto& label : metric.label) labels[label.name] = label.value;
  return labels;
}

// Writes one family.
class FamilyWriter {
 public:
  FamilyWriter(const MetricsRegistry& registry, const prometheus::MetricFamily& family,
               std::string& text)
      : registry_(registry), family_(family), out_(std::back_inserter(text)) {}

  void Write() {
    const bool counts = family_.type == prometheus::MetricType::Counter;
    const bool total = absl::EndsWith(family_.name, kTotal);
    const std::string name(counts ? absl::StripSuffix(family_.name, kTotal) : family_.name);
    fmt::format_to(out_, "# HELP {} {}\n# TYPE {} {}\n", name, Escaped(family_.help), name,
                   counts && !total ? "unknown" : TypeName(family_.type));
    for (const prometheus::ClientMetric& metric : family_.metric) Write(metric);
  }

 private:
  void Write(const prometheus::ClientMetric& metric) {
    switch (family_.type) {
      case prometheus::MetricType::Counter:
        return Line("", metric, metric.counter.value);
      case prometheus::MetricType::Gauge:
        return Line("", metric, metric.gauge.value);
      case prometheus::MetricType::Histogram:
        return WriteHistogram(metric);
      default:
        return Line("", metric, metric.untyped.value);
    }
  }

  void WriteHistogram(const prometheus::ClientMetric& metric) {
    const TracedHistogram* const traced = registry_.FindTraced(family_.name, LabelsOf(metric));
    size_t number = 0;
    for (const auto& bucket : metric.histogram.bucket) {
      Start("_bucket", metric, fmt::format("le=\"{}\"", Bound(bucket.upper_bound)));
      fmt::format_to(out_, " {}", bucket.cumulative_count);
      const auto exemplar = traced == nullptr ? std::nullopt : traced->exemplar(number);
      if (exemplar) {
        fmt::format_to(out_, " # {{trace_id=\"{}\"}} {} {}", exemplar->trace_id,
                       Number(exemplar->value), Seconds(exemplar->observed_at_ms));
      }
      fmt::format_to(out_, "\n");
      ++number;
    }
    Line("_count", metric, static_cast<double>(metric.histogram.sample_count));
    Line("_sum", metric, metric.histogram.sample_sum);
  }

  void Line(const char* suffix, const prometheus::ClientMetric& metric, double value) {
    Start(suffix, metric, "");
    fmt::format_to(out_, " {}\n", Number(value));
  }

  // The name and the labels; `last` is a label that is written already.
  void Start(const char* suffix, const prometheus::ClientMetric& metric, const std::string& last) {
    fmt::format_to(out_, "{}{}", family_.name, suffix);
    if (metric.label.empty() && last.empty()) return;
    const char* before = "{";
    for (const auto& label : metric.label) {
      fmt::format_to(out_, "{}{}=\"{}\"", before, label.name, Escaped(label.value));
      before = ",";
    }
    if (!last.empty()) fmt::format_to(out_, "{}{}", before, last);
    fmt::format_to(out_, "}}");
  }

  const MetricsRegistry& registry_;
  const prometheus::MetricFamily& family_;
  std::back_insert_iterator<std::string> out_;
};

// The weight of a media range of an Accept header (RFC 9110, 12.5.1): 1 without a parameter q.
double WeightOf(const std::vector<absl::string_view>& parameters) {
  for (const absl::string_view parameter : parameters) {
    absl::string_view value = absl::StripAsciiWhitespace(parameter);
    double weight = 0;
    if (absl::ConsumePrefix(&value, "q=")) return absl::SimpleAtod(value, &weight) ? weight : 0;
  }
  return 1;
}

bool OfAnotherVersion(const std::vector<absl::string_view>& parameters) {
  for (const absl::string_view parameter : parameters) {
    absl::string_view value = absl::StripAsciiWhitespace(parameter);
    if (absl::ConsumePrefix(&value, "version=")) return value != "1.0.0";
  }
  return false;
}

}  // namespace

std::string OpenMetricsText(const MetricsRegistry& registry) {
  std::string text;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    FamilyWriter(registry, family, text).Write();
  }
  return text + "# EOF\n";
}

bool PrefersOpenMetrics(std::string_view accept) {
  double open_metrics = 0, plain = 0;
  for (const absl::string_view range :
       absl::StrSplit(absl::string_view(accept.data(), accept.size()), ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(range, ';');
    const std::string type = absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts[0]));
    if (type == "application/openmetrics-text" && !OfAnotherVersion(parts)) {
      open_metrics = std::max(open_metrics, WeightOf(parts));
    }
    if (type == "text/plain") plain = std::max(plain, WeightOf(parts));
  }
  return open_metrics > 0 && open_metrics >= plain;
}

}  // namespace penstock
