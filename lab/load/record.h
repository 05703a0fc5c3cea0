#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace penstock {

enum class LoadResult { kGood, kFailed, kUnfinished };  // unfinished: the run ended first

// The result of one request. Written by one thread at a time.
struct LoadRecord {
  TimePoint planned;  // when it should have gone out
  TimePoint sent;
  TimePoint first;  // token
  TimePoint last;   // token
  TimePoint end;    // of the response
  struct Piece {
    float gap_ms = 0;  // since the one before; 0 for the first
    uint32_t tokens = 0;
  };
  std::vector<Piece> pieces;  // of the answer, as they came

  LoadResult result = LoadResult::kUnfinished;
  std::string error;   // its kind: few are different
  std::string detail;  // in the server's words

  uint32_t asked_prompt_tokens = 0;
  uint32_t asked_output_tokens = 0;
  uint32_t prompt_tokens = 0;  // as the server counts, where it says so
  uint32_t cached_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t counted_tokens = 0;  // seen in the stream
  bool exact_count = true;      // every piece said how many tokens it holds
  bool has_usage = false;
  std::string finish_reason;

  // `tokens` more have come, or one where that is not known.
  void OnTokens(TimePoint now, uint32_t tokens);
  void Fail(std::string kind, std::string words);

  double ttft_ms() const { return Milliseconds(first - sent); }
  double e2el_ms() const { return Milliseconds(last - sent); }
  // The mean over the answer's tokens after the first; 0 where there are none.
  double tpot_ms() const;
  double late_ms() const { return Milliseconds(sent - planned); }
};

}  // namespace penstock
