#include "lab/load/summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace penstock {
namespace {

double SecondsSince(TimePoint start, TimePoint at) { return Milliseconds(at - start) / 1e3; }

// `sorted` is not empty.
double Percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

uint32_t MostRunning(const std::vector<LoadRecord>& records) {
  std::vector<std::pair<TimePoint, int>> steps;
  for (const LoadRecord& record : records) {
    steps.emplace_back(record.sent, 1);
    steps.emplace_back(record.end, -1);
  }
  std::sort(steps.begin(), steps.end());  // of one moment, ends come first
  int running = 0;
  int max = 0;
  for (const auto& [at, step] : steps) max = std::max(max, running += step);
  return static_cast<uint32_t>(max);
}

void CheckCounts(const LoadRecord& record, LoadSummary& summary) {
  if (!record.has_usage) {
    ++summary.without_usage;
  } else if (record.exact_count ? record.counted_tokens != record.output_tokens
                                : record.counted_tokens > record.output_tokens) {
    ++summary.count_mismatches;  // A piece of text may hold several tokens, but never none.
  }
  summary.short_answers += record.output_tokens < record.asked_output_tokens ? 1 : 0;
}

void AddErrors(const LoadRecord& record, LoadSummary& summary) {
  LoadSummary::Error& error = summary.errors[record.error];
  ++error.count;
  if (error.example.empty()) error.example = record.detail;
}

}  // namespace

bool LoadSlo::Keeps(const LoadRecord& record) const {
  return (!ttft_ms || record.ttft_ms() <= *ttft_ms) && (!tpot_ms || record.tpot_ms() <= *tpot_ms) &&
         (!e2el_ms || record.e2el_ms() <= *e2el_ms);
}

absl::StatusOr<LoadSlo> ParseLoadSlo(std::string_view text) {
  LoadSlo slo;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    std::optional<double>* limit = name == "ttft"   ? &slo.ttft_ms
                                   : name == "tpot" ? &slo.tpot_ms
                                   : name == "e2el" ? &slo.e2el_ms
                                                    : nullptr;
    double value = 0;
    const std::string_view number = colon == std::string_view::npos ? "" : part.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (limit == nullptr || error != std::errc() || end != number.data() + number.size() ||
        !std::isfinite(value) || value <= 0) {
      return InvalidArgument(
          "`{}` is no limit: write ttft:200, tpot:20 or e2el:5000 (milliseconds)", part);
    }
    *limit = value;
  }
  return slo;
}

Distribution DistributionOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean,
          .median = Percentile(values, 0.5),
          .std = std::sqrt(squares / static_cast<double>(values.size())),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p95 = Percentile(values, 0.95),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

LoadSummary Summarise(const LoadOutcome& outcome, const LoadSlo& slo) {
  LoadSummary summary{.seconds = outcome.seconds};
  std::vector<double> ttft, tpot, itl, e2el, late;
  uint32_t kept = 0;
  for (const LoadRecord& record : outcome.records) {
    late.push_back(record.late_ms());
    summary.unfinished += record.result == LoadResult::kUnfinished ? 1 : 0;
    if (record.result == LoadResult::kFailed) {
      ++summary.failed;
      AddErrors(record, summary);
    }
    if (record.result != LoadResult::kGood) continue;
    ++summary.completed;
    summary.input_tokens += record.prompt_tokens;
    summary.cached_tokens += record.cached_tokens;
    summary.output_tokens += record.output_tokens;
    summary.counted_tokens += record.counted_tokens;
    ttft.push_back(record.ttft_ms());
    e2el.push_back(record.e2el_ms());
    if (record.output_tokens > 1) tpot.push_back(record.tpot_ms());
    for (size_t i = 1; i < record.pieces.size(); ++i) itl.push_back(record.pieces[i].gap_ms);
    kept += slo.Keeps(record) ? 1 : 0;
    CheckCounts(record, summary);
  }
  const double seconds = std::max(outcome.seconds, 1e-9);
  summary.request_throughput = summary.completed / seconds;
  if (slo.any()) summary.request_goodput = kept / seconds;
  summary.output_throughput = static_cast<double>(summary.output_tokens) / seconds;
  summary.total_token_throughput =
      static_cast<double>(summary.input_tokens + summary.output_tokens) / seconds;
  const LoadSeries series = SeriesOf(outcome, 1);
  for (const double tokens : series.output_tokens) {
    summary.output_tokens_per_s_max = std::max(summary.output_tokens_per_s_max, tokens);
  }
  summary.running_max = MostRunning(outcome.records);
  summary.ttft_ms = DistributionOf(std::move(ttft));
  summary.tpot_ms = DistributionOf(std::move(tpot));
  summary.itl_ms = DistributionOf(std::move(itl));
  summary.e2el_ms = DistributionOf(std::move(e2el));
  summary.late_ms = DistributionOf(std::move(late));
  return summary;
}

LoadSeries SeriesOf(const LoadOutcome& outcome, double bin_s) {
  const auto bins = static_cast<size_t>(std::ceil(outcome.seconds / bin_s)) + 1;
  LoadSeries series{.bin_s = bin_s,
                    .output_tokens = std::vector<double>(bins),
                    .requests = std::vector<double>(bins)};
  const auto bin_of = [&](double seconds) {
    return std::min(bins - 1, static_cast<size_t>(std::max(0.0, seconds / bin_s)));
  };
  for (const LoadRecord& record : outcome.records) {
    if (record.result != LoadResult::kGood) continue;
    series.requests[bin_of(SecondsSince(outcome.start, record.end))] += 1;
    double at_s = SecondsSince(outcome.start, record.first);
    for (const LoadRecord::Piece& piece : record.pieces) {
      at_s += static_cast<double>(piece.gap_ms) / 1e3;
      series.output_tokens[bin_of(at_s)] += piece.tokens;
    }
  }
  return series;
}

}  // namespace penstock
