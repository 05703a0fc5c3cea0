#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A piece of a text: bytes [begin, end).
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

// A regular expression of a tokenizer.json, over UTF-8 with Unicode classes. The reference engine
// is Oniguruma; ours is PCRE2, which gives the same matches for the patterns in use. Any thread.
class Regex {
 public:
  // INVALID_ARGUMENT with the offset in `pattern`.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // All matches from left to right, not overlapping. `text` is valid UTF-8. RESOURCE_EXHAUSTED when
  // the pattern backtracks more than a small multiple of the text's length.
  absl::StatusOr<std::vector<TextSpan>> FindAll(std::string_view text) const;

 private:
  struct FreeCode {
    void operator()(void* code) const;
  };
  Regex(void* code, std::string pattern) : code_(code), pattern_(std::move(pattern)) {}

  std::unique_ptr<void, FreeCode> code_;
  std::string pattern_;
};

}  // namespace penstock
