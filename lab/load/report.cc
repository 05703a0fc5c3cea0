#include "lab/load/report.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

void AddSpread(OrderedJson& json, const std::string& name, const Distribution& spread) {
  json["mean_" + name + "_ms"] = spread.mean;
  json["median_" + name + "_ms"] = spread.median;
  json["std_" + name + "_ms"] = spread.std;
  json["p50_" + name + "_ms"] = spread.p50;
  json["p90_" + name + "_ms"] = spread.p90;
  json["p95_" + name + "_ms"] = spread.p95;
  json["p99_" + name + "_ms"] = spread.p99;
  json["max_" + name + "_ms"] = spread.max;
}

// Seconds, as vLLM has them.
void AddDetail(OrderedJson& json, const LoadOutcome& outcome) {
  for (const char* name : {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}) {
    json[name] = OrderedJson::array();
  }
  for (const LoadRecord& record : outcome.records) {
    const bool good = record.result == LoadResult::kGood;
    OrderedJson gaps = OrderedJson::array();
    for (size_t i = 1; i < record.pieces.size(); ++i) gaps.push_back(record.pieces[i].gap_ms / 1e3);
    json["input_lens"].push_back(record.prompt_tokens);
    json["output_lens"].push_back(good ? record.output_tokens : 0);
    json["ttfts"].push_back(good ? record.ttft_ms() / 1e3 : 0);
    json["itls"].push_back(std::move(gaps));
    json["start_times"].push_back(Milliseconds(record.sent - outcome.start) / 1e3);
    const bool cut = record.result == LoadResult::kUnfinished;
    json["errors"].push_back(cut ? "unfinished" : record.error);
  }
}

void AddErrors(OrderedJson& json, const LoadSummary& summary) {
  json["error_counts"] = OrderedJson::object();
  json["error_examples"] = OrderedJson::object();
  for (const auto& [kind, error] : summary.errors) {
    json["error_counts"][kind] = error.count;
    json["error_examples"][kind] = error.example;
  }
}

OrderedJson RateOf(double rate) {
  if (std::isinf(rate)) return "inf";
  return rate == 0 ? OrderedJson(nullptr) : OrderedJson(rate);
}

std::string SpreadLine(const std::string& name, const Distribution& spread) {
  return fmt::format("  {:<34} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, spread.mean,
                     spread.p50, spread.p90, spread.p99, spread.max);
}

}  // namespace

std::string LoadJson(const LoadDescription& description, const LoadOutcome& outcome,
                     const LoadSummary& summary, bool detailed) {
  OrderedJson json = {
      {"date", description.date},
      {"backend", description.backend},
      {"endpoint_type", description.backend},
      {"label", nullptr},
      {"model_id", description.model},
      {"tokenizer_id", description.model},
      {"num_prompts", description.prompts},
      {"request_rate", RateOf(description.rate)},
      {"burstiness", description.burstiness},
      {"max_concurrency",
       description.concurrency == 0 ? OrderedJson(nullptr) : OrderedJson(description.concurrency)},
      {"duration", summary.seconds},
      {"completed", summary.completed},
      {"failed", summary.failed},
      {"total_input_tokens", summary.input_tokens},
      {"total_output_tokens", summary.output_tokens},
      {"request_throughput", summary.request_throughput},
      {"request_goodput",
       summary.request_goodput ? OrderedJson(*summary.request_goodput) : OrderedJson(nullptr)},
      {"output_throughput", summary.output_throughput},
      {"total_token_throughput", summary.total_token_throughput},
      {"max_output_tokens_per_s", summary.output_tokens_per_s_max},
      {"max_concurrent_requests", summary.running_max}};
  AddSpread(json, "ttft", summary.ttft_ms);
  AddSpread(json, "tpot", summary.tpot_ms);
  AddSpread(json, "itl", summary.itl_ms);
  AddSpread(json, "e2el", summary.e2el_ms);
  json["workload"] = description.workload;
  json["unfinished"] = summary.unfinished;
  json["stopped"] = outcome.stopped;
  json["total_cached_tokens"] = summary.cached_tokens;
  json["counted_output_tokens"] = summary.counted_tokens;
  json["without_usage"] = summary.without_usage;
  json["count_mismatches"] = summary.count_mismatches;
  json["short_answers"] = summary.short_answers;
  AddSpread(json, "generator_late", summary.late_ms);
  AddErrors(json, summary);
  if (detailed) AddDetail(json, outcome);
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string LoadText(const LoadSummary& summary) {
  std::string text;
  const auto count = [&](const char* name, auto value) {
    text += fmt::format("  {:<34} {:>9}\n", name, value);
  };
  const auto rate = [&](const char* name, double value) {
    text += fmt::format("  {:<34} {:>9.2f}\n", name, value);
  };
  count("requests completed", summary.completed);
  count("requests failed", summary.failed);
  if (summary.unfinished > 0) count("requests given up at the end", summary.unfinished);
  rate("seconds", summary.seconds);
  count("prompt tokens", summary.input_tokens);
  count("  of them cached", summary.cached_tokens);
  count("output tokens", summary.output_tokens);
  rate("requests a second", summary.request_throughput);
  if (summary.request_goodput) rate("  that kept the limits", *summary.request_goodput);
  rate("output tokens a second", summary.output_throughput);
  rate("tokens a second", summary.total_token_throughput);
  rate("most output tokens in a second", summary.output_tokens_per_s_max);
  count("most requests at once", summary.running_max);
  text += fmt::format("  {:<34} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "milliseconds", "mean", "p50",
                      "p90", "p99", "max");
  text += SpreadLine("to the first token (TTFT)", summary.ttft_ms);
  text += SpreadLine("per output token after it (TPOT)", summary.tpot_ms);
  text += SpreadLine("between pieces (ITL)", summary.itl_ms);
  text += SpreadLine("to the last token (E2EL)", summary.e2el_ms);
  text += SpreadLine("sent later than planned", summary.late_ms);
  for (const auto& [kind, error] : summary.errors) {
    text += fmt::format("  {} failed: {}{}{}\n", error.count, kind,
                        error.example.empty() ? "" : ": ", error.example);
  }
  const auto note = [&](uint32_t number, const char* what) {
    if (number > 0) text += fmt::format("  {} answers {}\n", number, what);
  };
  note(summary.without_usage, "without usage: their tokens are what was counted in the stream");
  note(summary.count_mismatches, "whose usage is not what the stream held");
  note(summary.short_answers, "shorter than asked for");
  return text;
}

}  // namespace penstock
