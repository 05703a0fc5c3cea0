#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "lab/eval/kv_eval.h"
#include "lab/plot/plot.h"

namespace penstock {
namespace {

nlohmann::ordered_json Json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"half_width_95", estimate.half_width}};
}

nlohmann::ordered_json Json(const std::map<int32_t, double>& recall) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [distance, share] : recall) json[std::to_string(distance)] = share;
  return json;
}

nlohmann::ordered_json Json(const KvQuality& row) {
  return {{"codec", row.codec},
          {"bits_per_element", row.bits_per_element},
          {"resident_bytes", row.resident_bytes},
          {"perplexity", row.perplexity},
          {"perplexity_change", Json(row.perplexity_change)},
          {"kl", Json(row.divergence)},
          {"kl_p99", row.divergence_p99},
          {"top1_agreement", Json(row.top1_agreement)},
          {"key_error", row.key_error},
          {"value_error", row.value_error},
          {"blend_deviation", row.blend_deviation ? nlohmann::ordered_json(*row.blend_deviation)
                                                  : nlohmann::ordered_json()},
          {"same_tokens", Json(row.same_tokens)},
          {"same_generation", row.same_generation},
          {"recall", Json(row.recall)},
          {"recall_change", Json(row.recall_change)},
          {"recall_question_later", Json(row.recall_later)},
          {"recall_question_later_change", Json(row.recall_later_change)}};
}

// Evictions and selections round nothing, pages of a format are not compared, and latents have no
// values of their own.
std::string ErrorText(double error) {
  return std::isnan(error) ? "-" : fmt::format("{:.4f}", error);
}

std::string RecallText(const std::map<int32_t, double>& recall) {
  std::string text;
  for (const auto& [distance, share] : recall) text += fmt::format(" {:>5.2f}", share);
  return text;
}

std::string ChangeText(const Estimate& change) {
  return fmt::format("  {:+.3f} ±{:.3f}", change.mean, change.half_width);
}

constexpr double kDivergenceMin = 1e-6;  // of the plot: exact codecs are drawn here

// One point for each row.
void AddPoints(const KvEvalReport& report, const std::function<PlotPoint(const KvQuality&)>& place,
               PlotChart& chart) {
  for (const KvQuality& row : report.rows) {
    PlotPoint point = place(row);
    point.label = row.codec;
    chart.curves.push_back({.name = row.codec, .points = {point}, .line = false});
  }
}

double KiB(const KvQuality& row) { return static_cast<double>(row.resident_bytes) / 1024; }

constexpr char kDivergenceTitle[] = "KL(exact || codec) in nats";
constexpr char kBytesLabel[] = "KiB of a sequence on a decode worker, at its peak";

PlotChart DivergenceOverBits(const KvEvalReport& report) {
  PlotChart chart{.title = kDivergenceTitle,
                  .x = {.label = "bits per element of the prompt's KV",
                        .min = 0,
                        .max = 18,
                        .ticks = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18}},
                  .y = {.logarithmic = true, .min = kDivergenceMin}};
  const auto place = [](const KvQuality& row) {
    return PlotPoint{row.bits_per_element, row.divergence.mean};
  };
  AddPoints(report, place, chart);
  return chart;
}

PlotChart DivergenceOverBytes(const KvEvalReport& report) {
  PlotChart chart{.title = kDivergenceTitle,
                  .x = {.label = kBytesLabel, .min = 0},
                  .y = {.logarithmic = true, .min = kDivergenceMin}};
  AddPoints(
      report,
      [](const KvQuality& row) {
        return PlotPoint{KiB(row), row.divergence.mean};
      },
      chart);
  return chart;
}

PlotChart RecallOverBytes(const KvEvalReport& report) {
  PlotChart chart{.title = "Numbers told, change against exact KV",
                  .x = {.label = kBytesLabel, .min = 0},
                  .y = {.min = -1, .max = 0}};
  AddPoints(
      report,
      [](const KvQuality& row) {
        return PlotPoint{KiB(row), row.recall_change.mean};
      },
      chart);
  return chart;
}

}  // namespace

std::string ToJson(const KvEvalReport& report) {
  const KvEvalOptions& options = report.options;
  nlohmann::ordered_json json = {{"eval", "kv"},
                                 {"model", options.model},
                                 {"text", options.text},
                                 {"seeds", options.seeds},
                                 {"windows", options.windows},
                                 {"context", options.context},
                                 {"continuation", options.continuation},
                                 {"document", options.document},
                                 {"recall_task", options.codes ? "code" : "pass-key"},
                                 {"prompts", options.prompts},
                                 {"tokens", report.tokens},
                                 {"perplexity", report.perplexity},
                                 {"recall", Json(report.recall)},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const KvQuality& row : report.rows) json["rows"].push_back(Json(row));
  return json.dump();
}

std::string ToText(const KvEvalReport& report) {
  const KvEvalOptions& options = report.options;
  size_t width = 16;
  for (const KvQuality& row : report.rows) width = std::max(width, row.codec.size());
  std::string text = fmt::format(
      "KV of {}: {} tokens of context, {} scored, {} windows of {} seeds; exact perplexity {:.3f}\n"
      "{:<{}} {:>6} {:>8} {:>18} {:>20} {:>9} {:>7} {:>7} {:>7} {:>6} {:>6}",
      options.model, options.context, options.continuation, options.windows * options.seeds,
      options.seeds, report.perplexity, "codec", width, "bits", "KiB", "perplexity", "KL", "KL p99",
      "top-1", "K error", "V error", "same", "never");
  const size_t recall_at = text.size() - text.find('\n') - 1;
  for (const auto& [distance, share] : report.recall)
    text += fmt::format(" {:>5}", "@" + std::to_string(distance));
  if (!report.recall.empty())
    text += fmt::format("\n{:<{}}{}", "exact", recall_at, RecallText(report.recall));
  text += '\n';
  for (const KvQuality& row : report.rows) {
    text += fmt::format(
        "{:<{}} {:>6.3f} {:>8} {:>+9.3f} ±{:>6.3f} % {:>10.6f} ±{:>8.6f} {:>9.5f} {:>6.2f}% "
        "{:>7} {:>7} {:>6.1f} {:>5.0f}%{}",
        row.codec, width, row.bits_per_element, row.resident_bytes / 1024,
        100 * row.perplexity_change.mean, 100 * row.perplexity_change.half_width,
        row.divergence.mean, row.divergence.half_width, row.divergence_p99,
        100 * row.top1_agreement.mean, ErrorText(row.key_error), ErrorText(row.value_error),
        row.same_tokens.mean, 100 * row.same_generation, RecallText(row.recall));
    if (!row.recall.empty()) text += ChangeText(row.recall_change);
    if (!row.recall_later.empty()) {
      text += "  later" + RecallText(row.recall_later) + ChangeText(row.recall_later_change);
    }
    if (row.blend_deviation) text += fmt::format("  deviation {:.3f}", *row.blend_deviation);
    text += '\n';
  }
  return text;
}

absl::Status WritePlot(const KvEvalReport& report, const std::string& path) {
  std::vector<PlotChart> charts = {DivergenceOverBits(report), DivergenceOverBytes(report)};
  if (!report.recall.empty()) charts.push_back(RecallOverBytes(report));
  return WritePlot(PlotSvg(report.options.model, charts), path);
}

}  // namespace penstock
