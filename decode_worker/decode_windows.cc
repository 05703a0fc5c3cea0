// DecodeEngine: models whose attention has a window. A sequence gives up the blocks that its window
// has passed, and takes others for them (docs/adr/0053-windows-that-free.md).

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

#include "decode_worker/decode_engine.h"

namespace penstock {

void DecodeEngine::PassWindow(DecodeSequence& sequence) {
  if (sequence.session->exchanges == 0) return;
  const int32_t position = std::max(0, sequence.position() - kMoveLag);
  const auto first = static_cast<size_t>(pool_.view().layout.FirstBlock(position));
  if (first <= sequence.passed) return;
  // The cache takes a sequence's blocks only as a whole, so it gets them while they are all here.
  if (first > sequence.kept) Keep(sequence);
  Exchange(*sequence.session, sequence.PassBlocks(first));
}

// The blocks of all its choices, each once.
int64_t DecodeEngine::BlocksHeld(const DecodeSession& session) const {
  absl::flat_hash_set<uint32_t> blocks;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session.get() != &session) continue;
    blocks.insert(sequence.table.begin() + static_cast<std::ptrdiff_t>(sequence.passed),
                  sequence.table.end());
  }
  return static_cast<int64_t>(blocks.size());
}

// A session that can be swapped out takes blocks as it needs them.
void DecodeEngine::Exchange(DecodeSession& session, std::vector<BlockRef> passed) {
  if (session.swap) return;
  cache_.Exchange(std::move(passed), session.exchanges - BlocksHeld(session), session.growth,
                  session.owed);
}

}  // namespace penstock
