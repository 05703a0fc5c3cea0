#include "model/gguf/gguf_merges.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "base/utf8.h"

namespace penstock {
namespace {

constexpr size_t kMaxMerges = size_t{1} << 22;

using IdOfPiece = std::unordered_map<std::string_view, int64_t>;

struct RankedMerge {
  PieceMerge parts;
  // Less is earlier: score, code points of left and right, all negated; then ids.
  std::tuple<double, int64_t, int64_t, int64_t, int64_t, int64_t> rank;
};

int64_t CodePoints(std::string_view text) {
  return std::ranges::count_if(text,
                               [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

void AppendSplits(const ScoredPiece& piece, const IdOfPiece& ids,
                  std::vector<RankedMerge>& merges) {
  const std::string_view text = piece.spelling;
  const int64_t length = CodePoints(text);
  int64_t left_length = 0;
  for (size_t at = 0; at < text.size();) {
    at += Utf8Length(text[at]);
    left_length++;
    if (at >= text.size()) return;
    const auto left = ids.find(text.substr(0, at));
    if (left == ids.end()) continue;
    const auto right = ids.find(text.substr(at));
    if (right == ids.end()) continue;
    merges.push_back({{left->first, right->first},
                      {-piece.score, -left_length, left_length - length, piece.id, left->second,
                       right->second}});
  }
}

}  // namespace

absl::StatusOr<std::vector<PieceMerge>> MergesByScore(std::span<const ScoredPiece> pieces) {
  IdOfPiece ids;
  for (const ScoredPiece& piece : pieces) ids.emplace(piece.spelling, piece.id);
  std::vector<RankedMerge> ranked;
  for (const ScoredPiece& piece : pieces) {
    AppendSplits(piece, ids, ranked);
    if (ranked.size() > kMaxMerges) {
      return InvalidArgument("the scores give more than {} merges", kMaxMerges);
    }
  }
  std::ranges::sort(ranked, {}, &RankedMerge::rank);
  std::vector<PieceMerge> merges;
  merges.reserve(ranked.size());
  for (const RankedMerge& merge : ranked) merges.push_back(merge.parts);
  return merges;
}

}  // namespace penstock
