// DecodeEngine: models whose attention has a window. A sequence gives up the blocks that its window
// has passed, and takes others for them (docs/adr/0053-windows-that-free.md).

#include <algorithm>
#include <utility>

#include "decode_worker/engine/decode_engine.h"

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

// A session that can be swapped out takes blocks as it needs them.
void DecodeEngine::Exchange(DecodeSession& session, std::vector<BlockRef> passed) {
  if (session.swap) return;
  cache_.Exchange(std::move(passed), session.exchanges - running_.BlocksHeld(session),
                  session.growth, session.owed);
}

// Where only some layers have a window, a sequence holds all its blocks, and the rows of those that
// its next token sees (docs/adr/0060-window-rows.md).
void DecodeEngine::HoldRows(DecodeSequence& sequence) {
  const int32_t position = std::max(0, sequence.position() - kMoveLag);
  sequence.session->growth.MoveWindow(
      sequence.blocks, pool_.view().layout.FirstGroupBlock(position), std::ssize(sequence.blocks));
}

}  // namespace penstock
