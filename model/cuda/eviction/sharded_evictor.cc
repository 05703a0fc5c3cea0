#include "model/cuda/eviction/sharded_evictor.h"

#include "base/check.h"

namespace penstock {

// The arguments of each rank: its pages, and the queries and scores of its heads. Its queries keep
// the stride of whole rows, and begin at its first head.
std::vector<KeyScoresArgs> ShardedEvictor::Divide(const KeyScoresArgs& args) const {
  const auto ranks = static_cast<int32_t>(ranks_.size());
  std::vector<KeyScoresArgs> parts(ranks_.size(), args);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    KeyScoresArgs& part = parts[static_cast<size_t>(rank)];
    part.kv = ranks_[static_cast<size_t>(rank)].kv;
    const int64_t kv_heads = part.kv.layout.kv_heads;
    PENSTOCK_CHECK_EQ(kv_heads * ranks, args.kv.layout.kv_heads);
    part.heads = args.heads / ranks;
    if (args.queries.dim(0) > 0) {
      part.queries.data += int64_t{rank} * part.heads * part.kv.layout.head_dim;
    }
    if (args.scores.dim(0) > 0) {
      part.scores = {args.scores.row(rank * kv_heads), {kv_heads, args.scores.dim(1)}};
    }
  }
  return parts;
}

void ShardedEvictor::Score(const KeyScoresArgs& args) {
  if (args.scoring == KeyScoring::kGiven) return;
  if (!ReadsKeys(args.scoring)) return ScoreKeys(exec_, args);
  const std::vector<KeyScoresArgs> parts = Divide(args);
  for (size_t i = 0; i < parts.size(); ++i) ranks_[i].evictor->BeginScore(parts[i]);
  for (size_t i = 0; i < parts.size(); ++i) ranks_[i].evictor->TakeScores(parts[i]);
  if (args.scoring == KeyScoring::kLayerAttention) ShareAmongHeads(args);
}

void ShardedEvictor::AddAttention(const KeyScoresArgs& args) {
  const std::vector<KeyScoresArgs> parts = Divide(args);
  for (size_t i = 0; i < parts.size(); ++i) ranks_[i].evictor->BeginAttention(parts[i]);
  for (size_t i = 0; i < parts.size(); ++i) ranks_[i].evictor->TakeScores(parts[i]);
}

void ShardedEvictor::Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) {
  const std::vector<KeyScoresArgs> parts = Divide(args.keys);
  const size_t heads = kept.size() / parts.size();
  EvictLayerArgs part = args;
  for (size_t i = 0; i < parts.size(); ++i) {
    part.keys = parts[i];
    ranks_[i].evictor->BeginMove(part, kept.subspan(i * heads, heads));
  }
  for (const Rank& rank : ranks_) rank.evictor->FinishMove();
}

}  // namespace penstock
