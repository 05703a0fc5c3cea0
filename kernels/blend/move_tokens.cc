#include "kernels/blend/move_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"

namespace penstock {
namespace {

// The slot of a token in its page.
struct TokenSlot {
  uint32_t block = 0;
  int64_t slot = 0;
};

TokenSlot SlotOf(const PagedKv& kv, std::span<const uint32_t> table, int64_t position) {
  const int64_t page = kv.layout.block_tokens;
  return {.block = table[static_cast<size_t>(position / page)], .slot = position % page};
}

// Cosines and sines of one token's rotation, for one table of frequencies.
struct Turn {
  std::vector<float> cosines, sines;
};

// The model's angles are products in f32, so the difference is that of two products.
Turn TurnOf(std::span<const float> frequencies, int64_t from, int64_t to) {
  Turn turn;
  for (const float frequency : frequencies) {
    const double angle = static_cast<double>(static_cast<float>(to) * frequency) -
                         static_cast<double>(static_cast<float>(from) * frequency);
    turn.cosines.push_back(static_cast<float>(std::cos(angle)));
    turn.sines.push_back(static_cast<float>(std::sin(angle)));
  }
  return turn;
}

void CopyRow(const PagedKv& kv, const KvRowsAt& from, const KvRowsAt& to) {
  const KvLayout& layout = kv.layout;
  const std::byte* source = kv.Layer(from.block, from.layer);
  std::byte* target = kv.Layer(to.block, to.layer);
  std::memcpy(target + layout.CodesAt(to.kv_head, to.plane, to.slot),
              source + layout.CodesAt(from.kv_head, from.plane, from.slot),
              layout.RowBytes(from.plane));
  if (layout.ScaleBytes() == 0) return;
  std::memcpy(target + layout.ScalesAt(to.kv_head, to.plane, to.slot),
              source + layout.ScalesAt(from.kv_head, from.plane, from.slot), layout.ScaleBytes());
}

void TurnKey(const PagedKv& kv, const KvRowsAt& from, const KvRowsAt& to, const Turn& turn) {
  const int32_t dims = kv.layout.head_dim;
  std::vector<Bf16> loaded(static_cast<size_t>(dims));
  std::vector<float> row(static_cast<size_t>(dims));
  cpu::LoadKvRows(kv, from, 1, loaded.data());
  std::transform(loaded.begin(), loaded.end(), row.begin(),
                 [](Bf16 value) { return ToFloat(value); });
  // StoreKvRow applies the transform of the pages' format to what it is given.
  if (kv.layout.IsRotated(KvPlane::kKeys)) cpu::RotateRows(row.data(), 1, dims);
  ActiveSimd().rope(row.data(), turn.cosines.data(), turn.sines.data(),
                    static_cast<int64_t>(turn.cosines.size()));
  cpu::StoreKvRow(kv, to, row.data());
}

void MoveToken(const KeyRotations& rotations, const MoveTokensArgs& args, int64_t token) {
  const PagedKv& kv = args.kv;
  const int64_t from_position = args.from_position + token, to_position = args.to_position + token;
  const TokenSlot from = SlotOf(kv, args.from, from_position);
  const TokenSlot to = SlotOf(kv, args.to, to_position);
  std::vector<Turn> turns;
  for (const std::vector<float>& table : rotations.tables) {
    turns.push_back(TurnOf(table, from_position, to_position));
  }
  for (int32_t layer = 0; layer < kv.layout.layers; ++layer) {
    const int32_t table = rotations.layers[static_cast<size_t>(layer)];
    for (int32_t head = 0; head < kv.layout.kv_heads; ++head) {
      KvRowsAt source{.block = from.block, .layer = layer, .kv_head = head, .slot = from.slot};
      KvRowsAt target{.block = to.block, .layer = layer, .kv_head = head, .slot = to.slot};
      if (table < 0 || from_position == to_position) {
        CopyRow(kv, source, target);
      } else {
        TurnKey(kv, source, target, turns[static_cast<size_t>(table)]);
      }
      source.plane = target.plane = KvPlane::kValues;
      CopyRow(kv, source, target);
    }
  }
}

}  // namespace

void MoveTokens(const KeyRotations& rotations, const MoveTokensArgs& args) {
  PENSTOCK_CHECK_EQ(std::ssize(rotations.layers), args.kv.layout.layers);
  PENSTOCK_CHECK_GE(std::ssize(args.from),
                    args.kv.layout.BlocksFor(args.from_position + args.tokens));
  PENSTOCK_CHECK_GE(std::ssize(args.to), args.kv.layout.BlocksFor(args.to_position + args.tokens));
  if (rotations.mover != nullptr) return rotations.mover->Move(args);
  ParallelFor(rotations.exec, args.tokens,
              [&](int64_t token, int) { MoveToken(rotations, args, token); });
}

}  // namespace penstock
