#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// Writes `dir`/tokenizer.json: the byte-level tokenizer of checkpoint `model`, with its special
// tokens, and further tokens up to `tokens`: numbers of two and three digits, runs of JSON's marks,
// the most frequent parts of the words in the files `texts`, and then pairs of these. It can
// decode, and has no merges, so it cannot encode well: it stands for the large vocabulary of
// another model where only the tokens' texts matter. `model`'s vocabulary must not be larger.
absl::Status WriteVocabulary(const std::string& model, const std::vector<std::string>& texts,
                             uint32_t tokens, const std::string& dir);

}  // namespace penstock
