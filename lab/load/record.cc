#include "lab/load/record.h"

namespace penstock {

void LoadRecord::OnTokens(TimePoint now, uint32_t tokens) {
  if (pieces.empty()) first = last = now;
  pieces.push_back({.gap_ms = static_cast<float>(Milliseconds(now - last)), .tokens = tokens});
  last = now;
  counted_tokens += tokens;
}

void LoadRecord::Fail(std::string kind, std::string words) {
  result = LoadResult::kFailed;
  error = std::move(kind);
  detail = std::move(words);
}

double LoadRecord::tpot_ms() const {
  if (output_tokens < 2) return 0;
  return Milliseconds(last - first) / (output_tokens - 1);
}

}  // namespace penstock
