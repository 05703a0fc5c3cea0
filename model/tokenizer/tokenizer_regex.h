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

// A regular expression of a tokenizer.json, over UTF-8 with Unicode classes. Hugging Face's engine
// is Oniguruma; this one is PCRE2, which gives the same matches for the patterns in use. Any thread
// may search.
class Regex {
 public:
  // Returns INVALID_ARGUMENT with the offset in `pattern`.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);

  // Returns all non-overlapping matches from left to right. `text` must be valid UTF-8. Returns
  // RESOURCE_EXHAUSTED if the pattern backtracks more than a small multiple of the text's length.
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
