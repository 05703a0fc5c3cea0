#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/load/load_run.h"

namespace penstock {

// Limits of a request's own figures, in milliseconds; absent: none.
struct LoadSlo {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
  bool Keeps(const LoadRecord& record) const;
};
// "ttft:200,tpot:20,e2el:5000". INVALID_ARGUMENT names what is wrong.
absl::StatusOr<LoadSlo> ParseLoadSlo(std::string_view text);

// Percentiles lie between the two nearest values, as NumPy has them.
struct Distribution {
  double mean = 0, median = 0, std = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Distribution DistributionOf(std::vector<double> values);

// Everything is of requests that ended well, unless it says otherwise. The definitions are those of
// vLLM's benchmark: a request's TPOT leaves out its first token, ITL is the gap between two pieces
// of a stream.
struct LoadSummary {
  double seconds = 0;
  uint32_t completed = 0;
  uint32_t failed = 0;
  uint32_t unfinished = 0;
  uint64_t input_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t output_tokens = 0;   // as the server counts, where it says so
  uint64_t counted_tokens = 0;  // that came
  double request_throughput = 0;
  std::optional<double> request_goodput;  // that kept the limits, a second
  double output_throughput = 0;
  double total_token_throughput = 0;
  double output_tokens_per_s_max = 0;  // in any whole second
  uint32_t running_max = 0;            // at once, however they ended
  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution late_ms;  // how late this program sent what was due, of all requests

  // Answers whose usage is absent or differs from the stream.
  uint32_t without_usage = 0;
  uint32_t count_mismatches = 0;  // usage and stream hold different numbers of tokens
  uint32_t short_answers = 0;     // fewer tokens than asked for
  struct Error {
    uint32_t count = 0;
    std::string example;
  };
  std::map<std::string, Error> errors;  // by kind
};
LoadSummary Summarise(const LoadOutcome& outcome, const LoadSlo& slo);

// Counts per bin of `bin_s` since the start.
struct LoadSeries {
  double bin_s = 1;
  std::vector<double> output_tokens;
  std::vector<double> requests;  // that ended well
};
LoadSeries SeriesOf(const LoadOutcome& outcome, double bin_s);

}  // namespace penstock
