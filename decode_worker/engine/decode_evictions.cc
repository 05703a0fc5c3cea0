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
  const int32_t again = std::max(0, sequence.queries_needed() - more);
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
             .queries = sequence.queries});
  std::copy(to.begin(), to.end(), sequence.table.begin());
  KeepBlocks(sequence, kept, shared);
  sequence.queries.Clear();
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

// Takes the queries that a compaction needs from the step that fills a sequence. Empty if it fills
// none that needs them.
DecodeEngine::Observation DecodeEngine::ObservationOf(std::span<const uint64_t> batch) {
  Observation observation;
  std::vector<std::pair<uint64_t, int64_t>> observed;  // sequences, and the first row of theirs
  int64_t row = 0;
  for (const uint64_t id : batch) {
    const DecodeSequence& sequence = running_.at(id);
    const int64_t last = row + std::ssize(sequence.first_part) - 1;  // of last_token
    row = last + 1 + std::ssize(sequence.guesses);
    if (const std::optional<int32_t> filling = sequence.FillingGuess()) {
      observed.emplace_back(id, last + *filling + 1 - sequence.queries_needed());
    }
  }
  if (observed.empty()) return observation;
  for (const auto& [id, first] : observed) {
    observation.rows.push_back({.first = first, .count = running_.at(id).queries_needed()});
  }
  observation.take = [this, observed = std::move(observed)](int32_t layer,
                                                            View<const float, 2> queries) {
    for (const auto& [id, first] : observed) {
      DecodeSequence& sequence = running_.at(id);
      const int32_t count = sequence.queries_needed();
      sequence.queries.Take(layer, {queries.row(first), {count, queries.dim(1)}}, count);
    }
  };
  return observation;
}

}  // namespace penstock
