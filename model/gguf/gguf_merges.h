#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A piece of a SentencePiece vocabulary.
struct ScoredPiece {
  std::string_view spelling;  // valid UTF-8
  int64_t id = 0;
  double score = 0;
};

struct PieceMerge {
  std::string_view left;
  std::string_view right;
};

// The merges of a tokenizer.json for a SentencePiece model with scores, in the order of their rank,
// as Hugging Face's converter of slow tokenizers makes them (generate_merges of
// convert_slow_tokenizer.py): every split of a piece into two pieces, by score of the piece, then
// by length of the left and of the right part, longest first, then by ids. Spellings are unique.
// INVALID_ARGUMENT if there are more than 2^22. Takes O(bytes of the pieces times their length).
absl::StatusOr<std::vector<PieceMerge>> MergesByScore(std::span<const ScoredPiece> pieces);

}  // namespace penstock
