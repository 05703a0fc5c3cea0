#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace penstock {

class JsonField;

// "post_processor" of a tokenizer.json: the ids that precede and follow those of a text.
struct PostProcessor {
  static absl::StatusOr<PostProcessor> Parse(const JsonField& field);

  std::vector<uint32_t> prefix;
  std::vector<uint32_t> suffix;
};

}  // namespace penstock
