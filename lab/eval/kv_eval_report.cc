#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/eval/kv_eval.h"

namespace penstock {
namespace {

nlohmann::ordered_json Json(const Estimate& estimate) {
  return {{"mean", estimate.mean}, {"half_width_95", estimate.half_width}};
}

nlohmann::ordered_json Json(const KvQuality& row) {
  nlohmann::ordered_json recall = nlohmann::ordered_json::object();
  for (const auto& [distance, share] : row.recall) recall[std::to_string(distance)] = share;
  return {{"codec", row.codec},
          {"bits_per_element", row.bits_per_element},
          {"perplexity", row.perplexity},
          {"perplexity_change", Json(row.perplexity_change)},
          {"kl", Json(row.divergence)},
          {"kl_p99", row.divergence_p99},
          {"top1_agreement", Json(row.top1_agreement)},
          {"key_error", row.key_error},
          {"value_error", row.value_error},
          {"same_tokens", Json(row.same_tokens)},
          {"same_generation", row.same_generation},
          {"recall", recall}};
}

constexpr double kWidth = 720, kHeight = 440, kMargin = 56;
constexpr double kLeastDivergence = 1e-6;  // what is exact is drawn here

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
      "{:<8} {:>6} {:>18} {:>20} {:>9} {:>7} {:>7} {:>7} {:>6} {:>6}",
      options.model, options.context, options.continuation, options.windows * options.seeds,
      options.seeds, report.perplexity, "codec", "bits", "perplexity", "KL", "KL p99", "top-1",
      "K error", "V error", "same", "never");
  for (const auto& [distance, share] : report.rows.front().recall) {
    text += fmt::format(" {:>6}", fmt::format("@{}", distance));
  }
  text += '\n';
  for (const KvQuality& row : report.rows) {
    text += fmt::format(
        "{:<8} {:>6.3f} {:>+9.3f} ±{:>6.3f} % {:>10.6f} ±{:>8.6f} {:>9.5f} {:>6.2f}% {:>7.4f} "
        "{:>7.4f} {:>6.1f} {:>5.0f}%",
        row.codec, row.bits_per_element, 100 * row.perplexity_change.mean,
        100 * row.perplexity_change.half_width, row.divergence.mean, row.divergence.half_width,
        row.divergence_p99, 100 * row.top1_agreement.mean, row.key_error, row.value_error,
        row.same_tokens.mean, 100 * row.same_generation);
    for (const auto& [distance, share] : row.recall) text += fmt::format(" {:>6.2f}", share);
    text += '\n';
  }
  return text;
}

absl::Status WritePlot(const KvEvalReport& report, const std::string& path) {
  double max = 10 * kLeastDivergence;
  for (const KvQuality& row : report.rows) max = std::max(max, 2 * row.divergence.mean);
  const auto x = [](double bits) { return kMargin + bits / 16.5 * (kWidth - 2 * kMargin); };
  const auto y = [&](double divergence) {
    const double share = std::log(std::max(divergence, kLeastDivergence) / kLeastDivergence) /
                         std::log(max / kLeastDivergence);
    return kHeight - kMargin - share * (kHeight - 2 * kMargin);
  };
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%' height='100%' fill='white'/>\n"
      "<text x='{}' y='24'>KL(exact || codec) in nats over bits per element; {}</text>\n",
      kWidth, kHeight, kMargin, report.options.model);
  for (double decade = kLeastDivergence; decade <= max; decade *= 10) {
    svg += fmt::format(
        "<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' stroke='#ddd'/><text x='6' "
        "y='{:.1f}'>{:.0e}</text>\n",
        kMargin, kWidth - kMargin, y(decade), y(decade), y(decade) + 4, decade);
  }
  for (int bits = 0; bits <= 16; bits += 2) {
    svg += fmt::format("<text x='{:.1f}' y='{}'>{}</text>\n", x(bits) - 4, kHeight - kMargin + 20,
                       bits);
  }
  for (const KvQuality& row : report.rows) {
    const char* colour = row.codec == "int4" ? "#c0392b" : "#2471a3";
    const double px = x(row.bits_per_element), py = y(row.divergence.mean);
    svg += fmt::format(
        "<circle cx='{:.1f}' cy='{:.1f}' r='4' fill='{}'/><text x='{:.1f}' y='{:.1f}' "
        "fill='{}'>{}</text>\n",
        px, py, colour, px + 6, py - 6, colour, row.codec);
  }
  std::ofstream file(path);
  file << svg << "</svg>\n";
  file.close();
  if (!file) return Unavailable("the plot could not be written to {}", path);
  return absl::OkStatus();
}

}  // namespace penstock
