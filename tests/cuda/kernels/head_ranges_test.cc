#include "kernels/cuda/sharded/head_ranges.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <utility>

namespace penstock::cuda {
namespace {

KvLayout Layout(KvDtype dtype, int32_t kv_heads = 8, int32_t block_tokens = 16) {
  return {.layers = 3,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .block_tokens = block_tokens,
          .dtype = dtype};
}

// Each layer is stored twice.
KvLayout SpanLayout(KvDtype dtype, int32_t kv_heads = 8) {
  return Layout(dtype, kv_heads).In({.dtype = dtype, .span = 64});
}

struct Place {
  int rank = -1;
  size_t offset = 0;
  bool operator==(const Place&) const = default;
};

// The place of each byte of a whole page, row by row and scale by scale.
std::vector<Place> PlacesOf(const KvLayout& whole, int ranks) {
  std::vector<Place> places(whole.BlockStride());
  const KvLayout own = LayoutOfRank(whole, ranks);
  const auto put = [&](size_t at, size_t bytes, int rank, size_t offset) {
    for (size_t i = 0; i < bytes; ++i) places[at + i] = {rank, offset + i};
  };
  for (int32_t layer = 0; layer < whole.layers; ++layer) {
    const size_t at = whole.BytesBefore(layer), own_at = own.BytesBefore(layer);
    for (int32_t head = 0; head < whole.kv_heads; ++head) {
      const int rank = head / own.kv_heads;
      const int32_t own_head = head % own.kv_heads;
      for (const auto plane : {penstock::KvPlane::kKeys, penstock::KvPlane::kValues}) {
        for (int slot = 0; slot < whole.block_tokens; ++slot) {
          if (whole.span > 0 && layer % 2 == 1) {
            put(at + whole.RecentAt(head, plane, slot), sizeof(Bf16) * whole.head_dim, rank,
                own_at + own.RecentAt(own_head, plane, slot));
            continue;
          }
          put(at + whole.CodesAt(head, plane, slot), whole.RowBytes(plane), rank,
              own_at + own.CodesAt(own_head, plane, slot));
          put(at + whole.ScalesAt(head, plane, slot), whole.ScaleBytes(), rank,
              own_at + own.ScalesAt(own_head, plane, slot));
        }
      }
    }
  }
  return places;
}

// The same by ranges; each byte at most once.
std::vector<Place> PlacesByRanges(const KvLayout& whole, int ranks, size_t offset, size_t bytes) {
  std::vector<Place> places(bytes);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const HeadRange& range : RangesOfRank(whole, ranks, rank, offset, bytes)) {
      size_t covered = 0;
      for (const HeadRange::Part& part : range.parts) {
        EXPECT_EQ(part.at, covered);
        covered += part.bytes;
        for (size_t i = 0; i < part.bytes; ++i) {
          EXPECT_EQ(places.at(part.in_whole + i).rank, -1);
          places.at(part.in_whole + i) = {rank, range.offset + part.at + i};
        }
      }
      EXPECT_EQ(covered, range.bytes);
    }
  }
  return places;
}

TEST(HeadRanges, AreWhereEveryRowIs) {
  for (const KvDtype dtype : kKvDtypes) {
    for (const int ranks : {1, 2, 4, 8}) {
      for (const int32_t block_tokens : {16, 32}) {
        const KvLayout whole = Layout(dtype, 8, block_tokens);
        const std::vector<Place> want = PlacesOf(whole, ranks);
        const size_t layer = whole.LayerBytes(), stride = whole.BlockStride();
        for (const auto& [offset, bytes] :
             std::map<size_t, size_t>{{0, stride}, {layer, layer}, {16, stride - 16}, {48, 16}}) {
          const std::vector<Place> got = PlacesByRanges(whole, ranks, offset, bytes);
          const auto from = want.begin() + static_cast<ptrdiff_t>(offset);
          EXPECT_TRUE(std::equal(got.begin(), got.end(), from))
              << KvDtypeName(dtype) << " of " << ranks << " from " << offset << " on " << bytes;
        }
      }
    }
  }
}

// Ranges within first copies, within second copies, and over the bounds of both.
TEST(HeadRanges, AreWhereEveryRowOfBothCopiesIs) {
  std::mt19937 random(11);
  for (const KvDtype dtype : kKvDtypes) {
    if (dtype == KvDtype::kBf16) continue;
    for (const int ranks : {1, 2, 4, 8}) {
      const KvLayout whole = SpanLayout(dtype);
      const std::vector<Place> want = PlacesOf(whole, ranks);
      const auto expect = [&](size_t offset, size_t bytes) {
        const std::vector<Place> got = PlacesByRanges(whole, ranks, offset, bytes);
        const auto from = want.begin() + static_cast<ptrdiff_t>(offset);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), from))
            << KvDtypeName(dtype) << " of " << ranks << " from " << offset << " on " << bytes;
      };
      expect(0, whole.BlockStride());
      for (int32_t layer = 0; layer < whole.layers; ++layer) {
        expect(whole.BytesBefore(layer), whole.BytesOf(layer));
      }
      for (int i = 0; i < 20; ++i) {
        const size_t units = whole.BlockStride() / 16, first = random() % units;
        expect(16 * first, 16 * (1 + random() % (units - first)));
      }
    }
  }
}

TEST(HeadRanges, OfLatentsAreAllBytesOfEveryRank) {
  const KvLayout whole{.layers = 3, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  EXPECT_EQ(LayoutOfRank(whole, 4), whole);
  const size_t layer = whole.LayerBytes();
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& [offset, bytes] : {std::pair(layer, 2 * layer), {layer - 32, size_t{64}}}) {
      const std::vector<HeadRange> ranges = RangesOfRank(whole, 4, rank, offset, bytes);
      ASSERT_EQ(ranges.size(), 1u);
      EXPECT_EQ(ranges[0].offset, offset);
      EXPECT_EQ(ranges[0].bytes, bytes);
      for (const HeadRange::Part& part : ranges[0].parts) EXPECT_EQ(part.at, part.in_whole);
    }
  }
}

TEST(HeadRanges, OfWholeLayersAreOne) {
  const KvLayout whole = Layout(KvDtype::kK8v4);
  const size_t layer = whole.LayerBytes();
  for (const auto& [offset, bytes] : {std::pair(size_t{0}, whole.BlockStride()), {layer, layer}}) {
    EXPECT_EQ(RangesOfRank(whole, 4, 2, offset, bytes).size(), 1u);
  }
  // A part of a layer may hold the codes of one rank alone.
  EXPECT_TRUE(RangesOfRank(whole, 4, 3, 0, 64).empty());
  EXPECT_EQ(RangesOfRank(whole, 4, 0, 0, 64).size(), 1u);
}

TEST(HeadRanges, OfBothCopiesOfWholeLayersAreOne) {
  const KvLayout whole = SpanLayout(KvDtype::kK3v3);
  for (const auto& [first, last] : {std::pair(0, 6), {1, 2}, {1, 4}, {2, 3}}) {
    const auto ranges =
        RangesOfRank(whole, 4, 2, whole.BytesBefore(first), whole.BytesOf(first, last));
    EXPECT_EQ(ranges.size(), 1u) << first;
  }
}

std::vector<LayerRun> RunsOf(const KvLayout& layout, bool apart, int32_t first, int32_t last) {
  const uint32_t row = 0;
  std::vector<std::byte> arena(layout.FullStride() + layout.RowStride());
  PagedKv kv{.arena = arena.data(), .blocks = 1, .layout = layout};
  const WindowRowsView rows = RowsBehind(kv, &row, 1);
  if (apart) kv.rows = &rows;
  return RunsOfLayers(kv, first, last);
}

TEST(LayerRuns, AreOfOneSizeAndOneMemory) {
  const KvLayout plain = Layout(KvDtype::kI8), spans = SpanLayout(KvDtype::kI8);
  EXPECT_EQ(RunsOf(plain, false, 1, 3), (std::vector<LayerRun>{{1, 2, 1, false}}));
  EXPECT_EQ(RunsOf(plain, false, 1, 1), std::vector<LayerRun>());
  EXPECT_EQ(RunsOf(spans, true, 0, 6), (std::vector<LayerRun>{{0, 3, 2, false}, {1, 3, 2, true}}));
  EXPECT_EQ(RunsOf(spans, true, 1, 4), (std::vector<LayerRun>{{1, 2, 2, true}, {2, 1, 2, false}}));
  EXPECT_EQ(RunsOf(spans, true, 3, 4), (std::vector<LayerRun>{{3, 1, 2, true}}));
  EXPECT_EQ(RunsOf(spans, false, 1, 3),
            (std::vector<LayerRun>{{1, 1, 2, false}, {2, 1, 2, false}}));
  KvLayout windows = Layout(KvDtype::kBf16);
  windows.layers = 6;
  windows.group.window = 20;
  for (const size_t layer : {0, 2, 3}) windows.group.layers.set(layer);
  EXPECT_EQ(RunsOf(windows, false, 0, 6), (std::vector<LayerRun>{{0, 6, 1, false}}));
  EXPECT_EQ(RunsOf(windows, true, 0, 6),
            (std::vector<LayerRun>{
                {0, 1, 1, true}, {1, 1, 1, false}, {2, 2, 1, true}, {4, 2, 1, false}}));
}

}  // namespace
}  // namespace penstock::cuda
