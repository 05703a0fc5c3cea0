#include "kernels/eviction/evict_layer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/eviction/kv_evictor.h"

namespace penstock {
namespace {

// Copies one slot of a head, keys and values.
void CopySlot(const PagedKv& kv, int32_t head, const std::byte* from, int64_t from_slot,
              std::byte* to, int64_t to_slot) {
  const KvLayout& layout = kv.layout;
  for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
    std::memcpy(to + layout.CodesAt(head, plane, to_slot),
                from + layout.CodesAt(head, plane, from_slot), layout.RowBytes(plane));
    if (layout.ScaleBytes() == 0) continue;
    std::memcpy(to + layout.ScalesAt(head, plane, to_slot),
                from + layout.ScalesAt(head, plane, from_slot), layout.ScaleBytes());
  }
}

// Without spans slots ascend, so that a slot that is written in place is none that is still to be
// read.
void CopySlots(const EvictLayerArgs& args, int32_t head, std::span<const uint32_t> slots) {
  const PagedKv& kv = args.keys.kv;
  const auto page = static_cast<size_t>(kv.layout.block_tokens);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == i && args.keys.blocks[i / page] == args.to[i / page]) continue;
    CopySlot(kv, head, kv.Layer(args.keys.blocks[slots[i] / page], args.keys.layer),
             static_cast<int64_t>(slots[i] % page), kv.Layer(args.to[i / page], args.keys.layer),
             static_cast<int64_t>(i % page));
  }
}

}  // namespace

void CpuEvictor::Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) {
  ParallelFor(exec_, args.keys.kv.layout.kv_heads, [&](int64_t head, int) {
    CopySlots(args, static_cast<int32_t>(head), kept[static_cast<size_t>(head)]);
  });
}

void EvictLayer(KvEvictor& evictor, const EvictLayerArgs& args) {
  const KvLayout& layout = args.keys.kv.layout;
  const int64_t tokens = args.keys.tokens;
  PENSTOCK_CHECK_GE(static_cast<int64_t>(args.to.size()),
                    layout.BlocksFor(std::min(args.rule.keep, tokens)));
  std::vector<float> scores;
  KeyScoresArgs keys = args.keys;
  if (keys.scoring != KeyScoring::kGiven) {
    scores.resize(static_cast<size_t>(layout.kv_heads * tokens));
    keys.scores = {scores.data(), {layout.kv_heads, tokens}};
    evictor.Score(keys);
  }
  std::vector<std::vector<uint32_t>> kept(static_cast<size_t>(layout.kv_heads));
  ParallelFor(evictor.exec(), layout.kv_heads, [&](int64_t head, int) {
    const std::span<const float> row(keys.scores.row(head), static_cast<size_t>(tokens));
    kept[static_cast<size_t>(head)] = ChooseSlots(row, args.rule);
  });
  evictor.Move(args, kept);
}

}  // namespace penstock
