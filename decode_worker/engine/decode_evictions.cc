// DecodeEngine: sequences that are evicted while decoding. One that holds as many tokens as its
// policy allows is compacted before its next step (docs/adr/0058-eviction-while-decoding.md).

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

#include "decode_worker/engine/decode_engine.h"

namespace penstock {

// Returns true if the sequence may hold `more` further tokens, after a compaction if one is due.
// False: it waits for blocks, or the limit ends the step, which then has fewer guesses.
bool DecodeEngine::FitLimit(DecodeSequence& sequence, int32_t more) {
  if (!sequence.compacts()) return true;
  if (sequence.full() && !Compact(sequence)) return false;
  if (sequence.tokens_held + more > static_cast<int32_t>(sequence.session->eviction->limit())) {
    return false;
  }
  return more == 1 || TakeAgain(sequence, more);
}

// Takes room in the step for the tokens that are computed again if `more` further tokens fill the
// sequence. False: there is none, and the sequence, or its guess, waits for a later step.
bool DecodeEngine::TakeAgain(const DecodeSequence& sequence, int32_t more) {
  if (!sequence.compacts()) return true;
  const auto limit = static_cast<int32_t>(sequence.session->eviction->limit());
  if (sequence.tokens_held + more != limit) return true;
  const int32_t again = std::max(0, sequence.observed() - more);
  if (again > again_left_) return false;
  again_left_ -= again;
  return true;
}

// Compacts the sequence in place; blocks that other choices refer to are replaced by new ones.
// Returns false while there are no blocks for these.
bool DecodeEngine::Compact(DecodeSequence& sequence) {
  const KvEviction& eviction = *sequence.session->eviction;
  const auto kept = static_cast<size_t>(pool_.view().layout.BlocksFor(eviction.keep_tokens));
  const std::vector<bool> shared = SharedBlocks(sequence);
  const auto copies =
      std::count(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(kept), true);
  if (!TakeGrowth(*sequence.session, copies)) return false;
  std::vector<BlockRef> fresh = sequence.session->growth.Take(copies);
  std::vector<uint32_t> to(sequence.table.begin(),
                           sequence.table.begin() + static_cast<std::ptrdiff_t>(kept));
  std::vector<BlockRef> replaced;  // until they are read
  for (size_t i = 0; i < kept; ++i) {
    if (!shared[i]) continue;
    replaced.push_back(std::exchange(sequence.blocks[i], std::move(fresh.back())));
    fresh.pop_back();
    to[i] = sequence.blocks[i].id();
  }
  CompactKv(*attention_, pool_.view(),
            {.eviction = eviction,
             .evicted = sequence.evicted,
             .from = sequence.table,
             .to = to,
             .scores = sequence.scores});
  std::copy(to.begin(), to.end(), sequence.table.begin());
  KeepBlocks(sequence, kept, shared);
  sequence.tokens_held -= static_cast<int32_t>(eviction.slack_tokens);
  sequence.evicted += static_cast<int32_t>(eviction.slack_tokens);
  decode_evicted_tokens_ += eviction.slack_tokens;
  ++compactions_;
  return true;
}

// Gives up the blocks behind the first `kept` ones: all if the session can be swapped out, and so
// takes blocks as it needs them; otherwise those that other choices refer to, because the session's
// credit covers the others once only.
void DecodeEngine::KeepBlocks(DecodeSequence& sequence, size_t kept,
                              const std::vector<bool>& shared) {
  size_t end = kept;
  for (size_t i = kept; i < shared.size(); ++i) {
    if (sequence.session->swap || shared[i]) continue;
    if (i > end) sequence.blocks[end] = std::move(sequence.blocks[i]);
    sequence.table[end] = sequence.table[i];
    ++end;
  }
  sequence.blocks.resize(end);
  sequence.table.resize(end);
}

// For each block of the sequence, true if another choice of its session refers to it. No cache has
// any of them.
std::vector<bool> DecodeEngine::SharedBlocks(const DecodeSequence& sequence) {
  absl::flat_hash_set<uint32_t> others;
  for (const auto& [id, other] : running_.all()) {
    if (other.session != sequence.session || id == sequence.id) continue;
    others.insert(other.table.begin(), other.table.end());
  }
  std::vector<bool> shared(sequence.table.size());
  for (size_t i = 0; i < shared.size(); ++i) shared[i] = others.contains(sequence.table[i]);
  return shared;
}

// Has the step that fills a sequence add up the scores of its compaction, layer by layer. Empty if
// it fills none that needs them.
DecodeEngine::Observation DecodeEngine::ObservationOf(std::span<const uint64_t> batch) {
  Observation observation;
  std::vector<uint64_t> observed;
  int64_t row = 0;
  for (const uint64_t id : batch) {
    DecodeSequence& sequence = running_.at(id);
    const int64_t last = row + std::ssize(sequence.first_part) - 1;  // of last_token
    row = last + 1 + std::ssize(sequence.guesses);
    const std::optional<int32_t> filling = sequence.FillingGuess();
    if (!filling) continue;
    const int32_t count = sequence.observed();
    observation.rows.push_back({.first = last + *filling + 1 - count, .count = count});
    observed.push_back(id);
    sequence.scores.Clear();  // of a step that has failed
  }
  if (observed.empty()) return observation;
  observation.take = [this, observed = std::move(observed), rows = observation.rows](
                         int32_t layer, View<const float, 2> queries) {
    for (size_t i = 0; i < observed.size(); ++i) {
      AddScores(running_.at(observed[i]), layer,
                {queries.row(rows[i].first), {rows[i].count, queries.dim(1)}});
    }
  };
  return observation;
}

// `queries` are those of the sequence's last tokens when it is full.
void DecodeEngine::AddScores(DecodeSequence& sequence, int32_t layer,
                             View<const float, 2> queries) {
  const KvEviction& eviction = *sequence.session->eviction;
  sequence.scores.Add(
      *attention_, pool_.view(), eviction,
      {.layer = layer, .blocks = sequence.table, .tokens = eviction.limit(), .queries = queries});
}

}  // namespace penstock
