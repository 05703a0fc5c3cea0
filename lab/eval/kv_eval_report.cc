#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/eval/kv_eval.h"
#include "lab/plot/plot.h"

namespace penstock {
namespace {

nlohmann::ordered_json Json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"half_width_95", estimate.half_width}};
}

nlohmann::ordered_json Json(const KvQuality& row) {
  nlohmann::ordered_json recall = nlohmann::ordered_json::object();
  nlohmann::ordered_json later = nlohmann::ordered_json::object();
  for (const auto& [distance, share] : row.recall) recall[std::to_string(distance)] = share;
  for (const auto& [distance, share] : row.recall_later) later[std::to_string(distance)] = share;
  return {{"codec", row.codec},
          {"bits_per_element", row.bits_per_element},
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
          {"recall", recall},
          {"recall_question_later", later}};
}

// Evictions and selections round nothing, pages of a format are not compared, and latents have no
// values of their own.
std::string ErrorText(double error) {
  return std::isnan(error) ? "-" : fmt::format("{:.4f}", error);
}

constexpr double kDivergenceMin = 1e-6;  // of the plot: exact codecs are drawn here

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
                                 {"prompts", options.prompts},
                                 {"tokens", report.tokens},
                                 {"perplexity", report.perplexity},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const KvQuality& row : report.rows) json["rows"].push_back(Json(row));
  return json.dump();
}

std::string ToText(const KvEvalReport& report) {
  const KvEvalOptions& options = report.options;
  std::string text = fmt::format(
      "KV of {}: {} tokens of context, {} scored, {} windows of {} seeds; exact perplexity {:.3f}\n"
      "{:<14} {:>6} {:>18} {:>20} {:>9} {:>7} {:>7} {:>7} {:>6} {:>6}",
      options.model, options.context, options.continuation, options.windows * options.seeds,
      options.seeds, report.perplexity, "codec", "bits", "perplexity", "KL", "KL p99", "top-1",
      "K error", "V error", "same", "never");
  for (const auto& [distance, share] : report.rows.front().recall) {
    text += fmt::format(" {:>6}", fmt::format("@{}", distance));
  }
  text += '\n';
  for (const KvQuality& row : report.rows) {
    text += fmt::format(
        "{:<14} {:>6.3f} {:>+9.3f} ±{:>6.3f} % {:>10.6f} ±{:>8.6f} {:>9.5f} {:>6.2f}% {:>7} "
        "{:>7} {:>6.1f} {:>5.0f}%",
        row.codec, row.bits_per_element, 100 * row.perplexity_change.mean,
        100 * row.perplexity_change.half_width, row.divergence.mean, row.divergence.half_width,
        row.divergence_p99, 100 * row.top1_agreement.mean, ErrorText(row.key_error),
        ErrorText(row.value_error), row.same_tokens.mean, 100 * row.same_generation);
    for (const auto& [distance, share] : row.recall) text += fmt::format(" {:>6.2f}", share);
    if (row.blend_deviation) text += fmt::format("  deviation {:.3f}", *row.blend_deviation);
    if (!row.recall_later.empty()) text += "  later";
    for (const auto& [distance, share] : row.recall_later) text += fmt::format(" {:.2f}", share);
    text += '\n';
  }
  return text;
}

absl::Status WritePlot(const KvEvalReport& report, const std::string& path) {
  PlotChart chart{.title = "KL(exact || codec) in nats; " + report.options.model,
                  .x = {.label = "bits per element",
                        .min = 0,
                        .max = 16.5,
                        .ticks = {0, 2, 4, 6, 8, 10, 12, 14, 16}},
                  .y = {.logarithmic = true, .min = kDivergenceMin}};
  for (const KvQuality& row : report.rows) {
    const PlotPoint point{row.bits_per_element, row.divergence.mean, row.codec};
    chart.curves.push_back({.name = row.codec, .points = {point}, .line = false});
  }
  return WritePlot(PlotSvg("", {chart}), path);
}

}  // namespace penstock
