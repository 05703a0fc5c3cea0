#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "proto/inference.pb.h"

namespace penstock {

// The answer of one call, and its times by the client's clock.
class Answer {
 public:
  // `clock` outlives it.
  explicit Answer(const Clock& clock) : clock_(&clock), start_(clock.Now()) {}

  void Add(const v1::GenerateResponse& response);

  const std::string& text(size_t choice) const;
  size_t choices() const { return texts_.size(); }
  // True once the server has sent its final message.
  bool complete() const { return last_.has_usage(); }
  const v1::Final& last() const { return last_; }

  double first_token_ms() const;  // from the call to the first token
  double token_ms() const;        // between tokens of one choice, on average; 0 for a single token
  double tokens_per_second() const;

 private:
  const Clock* clock_;
  TimePoint start_;
  TimePoint first_;
  TimePoint end_;
  bool any_ = false;
  std::vector<std::string> texts_;
  v1::Final last_;
};

// TTFT, TPOT, tokens, bytes moved, overlap, transport and workers: some lines, each ending in '\n'.
std::string StatsText(const Answer& answer);

// One line of JSON without its end, for a chunk, a final or an error. With `stats` the last final
// also has "stats": {"ttft_ms", "tpot_ms", "kv_bytes_moved", ...}.
std::string ResponseJson(const v1::GenerateResponse& response, const Answer& answer, bool stats);
std::string ErrorJson(std::string_view code, std::string_view message);

}  // namespace penstock
