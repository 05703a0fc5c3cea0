#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace penstock {

class JsonField;

// "decoder" of a tokenizer.json: the text that a token stands for. Any thread may call it.
class TokenDecoder {
 public:
  static absl::StatusOr<TokenDecoder> Parse(const JsonField& field);

  // The bytes of a token in the middle of a text.
  std::string BytesOf(std::string_view spelling) const;
  // The bytes of a token at the start of a text, if they differ: Metaspace drops all its spaces.
  std::optional<std::string> BytesOfFirst(std::string_view spelling) const;
  // The number of spaces to drop at the start of a text.
  size_t strip_left() const { return strip_left_; }

 private:
  absl::Status AddSteps(const JsonField& field, int depth);
  absl::Status AddReplace(const JsonField& field);
  absl::Status AddStrip(const JsonField& field);
  absl::Status AddMetaspace(const JsonField& field);

  std::vector<std::pair<std::string, std::string>> replacements_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::string metaspace_prefix_;  // dropped from the first token; may be empty
  size_t strip_left_ = 0;
};

}  // namespace penstock
