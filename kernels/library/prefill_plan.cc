#include <algorithm>
#include <queue>

#include "kernels/library/prefill.h"

namespace penstock::cuda::library {
namespace {

struct Tile {
  int32_t sequence;
  int32_t tile;
  int64_t cost;  // in keys, and about 256 for the start
};

std::vector<Tile> TilesOf(std::span<const PrefillRows> sequences, const PrefillShape& shape) {
  const int32_t tile_rows = PrefillTileRows(shape.head_dim);
  std::vector<Tile> tiles;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const PrefillRows& s = sequences[i];
    for (int32_t first = 0; first < s.rows; first += tile_rows) {
      const int32_t end = s.position + std::min(first + tile_rows, s.rows);
      const int32_t begin =
          shape.window > 0 ? std::max(0, s.position + first + 1 - shape.window) : 0;
      tiles.push_back({.sequence = static_cast<int32_t>(i),
                       .tile = first / tile_rows,
                       .cost = 256 + end - begin});
    }
  }
  std::ranges::stable_sort(tiles, [](const Tile& a, const Tile& b) { return a.cost > b.cost; });
  return tiles;
}

struct Work {
  Tile tile;
  int32_t head;
};

std::vector<std::vector<Work>> Deal(const std::vector<Tile>& tiles, const PrefillShape& shape) {
  using Load = std::pair<int64_t, int32_t>;  // cost, processor
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int32_t p = 0; p < shape.processors; ++p) loads.push({0, p});
  std::vector<std::vector<Work>> dealt(shape.processors);
  for (const Tile& tile : tiles) {
    for (int32_t head = 0; head < shape.heads; ++head) {
      auto [cost, processor] = loads.top();
      loads.pop();
      dealt[processor].push_back({tile, head});
      loads.push({cost + tile.cost, processor});
    }
  }
  return dealt;
}

}  // namespace

bool SupportsPrefill(const KvPlanes& kv) {
  const bool plain = kv.keys.code == KvCode::kBf16 && kv.values.code == KvCode::kBf16;
  // The kernel has one stride for keys and values.
  return plain && !kv.rotated_keys && kv.keys.head_stride == kv.values.head_stride &&
         (kv.head_dim == 64 || kv.head_dim == 128);
}

PrefillStrides StridesOf(const KvPlanes& kv) {
  const auto at = [&](const KvPlane& plane) {
    return reinterpret_cast<const Bf16*>(kv.layer + plane.offset);
  };
  return {.keys = at(kv.keys),
          .values = at(kv.values),
          .page = kv.block_stride / 2,
          .head = kv.keys.head_stride / 2,
          .token = kv.keys.row_bytes / 2};
}

PrefillPlan PlanPrefill(std::span<const PrefillRows> sequences, const PrefillShape& shape) {
  const std::vector<Tile> tiles = TilesOf(sequences, shape);
  const auto items = static_cast<int32_t>(tiles.size()) * shape.heads;
  PrefillPlan plan{.items = items,
                   .words = std::vector<int32_t>(shape.processors + 1 + kPrefillFields * items)};
  int32_t item = 0;
  const auto put = [&](PrefillField field, int32_t word) {
    plan.words[PrefillFieldAt(field, items, shape.processors) + item] = word;
  };
  int32_t processor = 0;
  for (const std::vector<Work>& works : Deal(tiles, shape)) {
    plan.words[processor++] = item;
    for (const Work& work : works) {
      const PrefillRows& s = sequences[work.tile.sequence];
      put(PrefillField::kTile, work.tile.tile);
      put(PrefillField::kFirstRow, s.first_row);
      put(PrefillField::kRows, s.rows);
      put(PrefillField::kTableAt, static_cast<int32_t>(work.tile.sequence * shape.table_stride));
      put(PrefillField::kLength, s.position + s.rows);
      put(PrefillField::kHead, work.head);
      put(PrefillField::kSequence, work.tile.sequence);
      ++item;
    }
  }
  plan.words[processor] = item;
  return plan;
}

}  // namespace penstock::cuda::library
