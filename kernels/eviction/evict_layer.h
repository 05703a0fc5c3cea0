#pragma once

#include <cstdint>
#include <span>

#include "kernels/eviction/kept_slots.h"
#include "kernels/eviction/key_scores.h"

namespace penstock {

// One layer of a sequence of which `rule.keep` tokens stay.
struct EvictLayerArgs {
  KeyScoresArgs keys;  // `scores` may be empty, except for kGiven
  KeepRule rule;       // of every KV head
  // Block table of the result. Without rule.spans a block may be that of the same index in
  // keys.blocks, which is then written in place; otherwise it is none of keys.blocks.
  std::span<const uint32_t> to;
};

class KvEvictor;

// Copies what stays to slots 0 to rule.keep - 1 of `to`, in the order of ChooseSlots, each KV head
// by itself: slot j of two heads may hold different tokens. Codes and scales are copied bit by bit,
// so nothing is rounded. Keys keep the rotation of their own positions.
void EvictLayer(KvEvictor& evictor, const EvictLayerArgs& args);

}  // namespace penstock
