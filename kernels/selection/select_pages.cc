#include "kernels/selection/select_pages.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/eviction/kept_slots.h"
#include "kernels/kv_rows.h"

namespace penstock {
namespace {

constexpr int64_t kTilePanels = kKvTile / kTileColumns;

// The queries of a KV head's group as one row [2][head_dim]: the sum of their positive parts, which
// greatest keys are multiplied with, and that of their negative parts, for the least keys.
std::vector<float> SplitQuery(const SelectPagesArgs& args, int64_t row, int32_t kv_head) {
  const int64_t dims = args.layout.head_dim, group = args.heads / args.layout.kv_heads;
  std::vector<float> split(static_cast<size_t>(2 * dims));
  std::vector<float> query(static_cast<size_t>(dims));
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::copy_n(args.queries.row(row) + head * dims, dims, query.begin());
    if (args.layout.IsRotated(KvPlane::kKeys)) {
      cpu::RotateRows(query.data(), 1, static_cast<int32_t>(dims));
    }
    for (int64_t d = 0; d < dims; ++d) {
      const auto i = static_cast<size_t>(d);
      split[i] += std::max(query[i], 0.0f);
      split[i + static_cast<size_t>(dims)] += std::min(query[i], 0.0f);
    }
  }
  return split;
}

// The bounds of kKvTile pages from `first` on; zeros behind the last.
void FindTile(const SelectPagesArgs& args, std::span<const uint32_t> blocks, int32_t kv_head,
              const Bf16* zeros, const Bf16** rows) {
  std::fill_n(rows, kKvTile, zeros);
  for (size_t i = 0; i < std::min<size_t>(blocks.size(), kKvTile); ++i) {
    rows[i] = args.bounds->Of(args.layout, blocks[i], args.layer, kv_head);
    __builtin_prefetch(rows[i], 0, 2);
  }
}

void SelectForHead(const SelectPagesArgs& args, const SelectingRow& row, int32_t kv_head) {
  const KeepRule rule{.keep = row.keep, .first = kFirstPages, .last = kLastPages};
  std::vector<float> scores(row.blocks.size());
  ScorePages(args, row, kv_head, std::span(scores).first(scores.size() - kLastPages));
  uint32_t* table = row.tables.data() + kv_head * row.keep;
  for (const uint32_t page : ChooseSlots(scores, rule)) *table++ = row.blocks[page];
}

}  // namespace

void ScorePages(const SelectPagesArgs& args, const SelectingRow& row, int32_t kv_head,
                std::span<float> scores) {
  const SimdOps& simd = ActiveSimd();
  const int64_t width = 2 * args.layout.head_dim;
  const std::vector<float> query = SplitQuery(args, row.row, kv_head);
  std::vector<float> packed(static_cast<size_t>(width));  // room for activations of any size
  simd.pack_rows(query.data(), width, 1, 0, width, packed.data());
  const std::vector<Bf16> zeros(static_cast<size_t>(width));
  std::vector<Bf16> panels(static_cast<size_t>(kKvTile * width));
  const Bf16* rows[kKvTile];
  for (size_t first = 0; first < scores.size(); first += kKvTile) {
    const size_t count = std::min<size_t>(kKvTile, scores.size() - first);
    FindTile(args, row.blocks.subspan(first, count), kv_head, zeros.data(), rows);
    simd.pack_keys(rows, width, panels.data());
    alignas(64) float tile[kKvTile] = {};
    for (int64_t panel = 0; panel < kTilePanels; ++panel) {
      simd.multiply_tile(1, width / 2, packed.data(), panels.data() + panel * width * kTileColumns,
                         tile + panel * kTileColumns);
    }
    std::copy_n(tile, count, scores.data() + first);
  }
}

void SelectPages(const Exec& exec, const SelectPagesArgs& args) {
  const int32_t heads = args.layout.kv_heads;
  ParallelFor(exec, std::ssize(args.rows) * heads, [&](int64_t task, int) {
    const SelectingRow& row = args.rows[static_cast<size_t>(task / heads)];
    PENSTOCK_CHECK_GE(row.keep, kFirstPages + kLastPages);
    PENSTOCK_CHECK_GT(std::ssize(row.blocks), row.keep);
    PENSTOCK_CHECK_EQ(std::ssize(row.tables), heads * row.keep);
    SelectForHead(args, row, static_cast<int32_t>(task % heads));
  });
}

}  // namespace penstock
