// The plans of the library kernels, which need no GPU: which tile a product has, which block
// computes which part of prefill attention, and where the kernels find keys and values.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/cuda/kv_planes.h"
#include "kernels/library/fast_div.h"
#include "kernels/library/gemm_plan.h"
#include "kernels/library/prefill.h"
#include "kernels/library/tile_check.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda::library {
namespace {

using Sequences = std::vector<PrefillRows>;

PrefillShape Shape(int32_t heads = 8) {
  return {.heads = heads, .head_dim = 128, .table_stride = 100, .processors = 13};
}

int32_t Word(const PrefillPlan& plan, const PrefillShape& shape, PrefillField field, int32_t item) {
  return plan.words[PrefillFieldAt(field, plan.items, shape.processors) + item];
}

// What is wrong with a plan; empty: nothing.
std::string FaultOf(const PrefillPlan& plan, const Sequences& sequences,
                    const PrefillShape& shape) {
  const auto size = static_cast<size_t>(shape.processors) + 1 + kPrefillFields * plan.items;
  if (plan.words.size() != size) return "its arrays have the wrong size";
  if (plan.words[0] != 0 || plan.words[shape.processors] != plan.items) return "items are left out";
  for (int32_t p = 0; p < shape.processors; ++p) {
    if (plan.words[p] > plan.words[p + 1]) return "a processor has less than no items";
  }
  std::set<std::tuple<int32_t, int32_t, int32_t>> found;
  for (int32_t item = 0; item < plan.items; ++item) {
    const auto word = [&](PrefillField field) { return Word(plan, shape, field, item); };
    const int32_t index = word(PrefillField::kSequence);
    if (index < 0 || index >= static_cast<int32_t>(sequences.size())) return "no such sequence";
    const PrefillRows& s = sequences[index];
    if (word(PrefillField::kFirstRow) != s.first_row || word(PrefillField::kRows) != s.rows ||
        word(PrefillField::kLength) != s.position + s.rows ||
        word(PrefillField::kTableAt) != index * shape.table_stride) {
      return "an item is not its sequence's";
    }
    const int32_t tile = word(PrefillField::kTile), head = word(PrefillField::kHead);
    if (tile < 0 || tile * PrefillTileRows(shape.head_dim) >= s.rows) return "a tile has no rows";
    if (head < 0 || head >= shape.heads) return "no such head";
    if (!found.insert({index, tile, head}).second) return "a tile is computed twice";
  }
  size_t tiles = 0;
  const int32_t rows = PrefillTileRows(shape.head_dim);
  for (const PrefillRows& s : sequences) tiles += (s.rows + rows - 1) / rows;
  return found.size() == tiles * shape.heads ? "" : "a tile is missing";
}

Sequences RandomSequences(std::mt19937& random) {
  Sequences sequences;
  int32_t first = 0;
  const int count = static_cast<int>(random() % 9);
  for (int i = 0; i < count; ++i) {
    const auto rows = static_cast<int32_t>(random() % 5 == 0 ? 1 : random() % 700);
    sequences.push_back(
        {.first_row = first, .rows = rows, .position = static_cast<int32_t>(random() % 3000)});
    first += rows;
  }
  return sequences;
}

TEST(LibraryPrefillPlan, HasEveryTileOfEveryHeadOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Sequences sequences = RandomSequences(random);
    PrefillShape shape = Shape(1 + static_cast<int32_t>(random() % 33));
    shape.head_dim = random() % 2 == 0 ? 64 : 128;
    shape.window = random() % 2 == 0 ? 0 : 500;
    ASSERT_EQ(FaultOf(PlanPrefill(sequences, shape), sequences, shape), "") << i;
  }
}

TEST(LibraryPrefillPlan, OfNoRowsIsEmpty) {
  const PrefillShape shape = Shape();
  for (const Sequences& sequences : {Sequences{}, Sequences{{.rows = 0, .position = 7}}}) {
    const PrefillPlan plan = PlanPrefill(sequences, shape);
    EXPECT_EQ(plan.items, 0);
    EXPECT_EQ(plan.words, std::vector<int32_t>(shape.processors + 1));
  }
}

// FaultOf finds each of these, so the tests above would.
TEST(LibraryPrefillPlan, WrongPlansAreFound) {
  const PrefillShape shape = Shape();
  const Sequences sequences = {{.first_row = 0, .rows = 300, .position = 50},
                               {.first_row = 300, .rows = 1, .position = 9}};
  const PrefillPlan good = PlanPrefill(sequences, shape);
  ASSERT_EQ(FaultOf(good, sequences, shape), "");
  const auto with = [&](PrefillField field, int32_t item, int32_t word) {
    PrefillPlan plan = good;
    plan.words[PrefillFieldAt(field, plan.items, shape.processors) + item] = word;
    return FaultOf(plan, sequences, shape);
  };
  const int32_t last = good.items - 1;
  EXPECT_EQ(with(PrefillField::kTile, 0, 3), "a tile has no rows");
  EXPECT_EQ(with(PrefillField::kTile, 0, -1), "a tile has no rows");
  EXPECT_EQ(with(PrefillField::kHead, 0, shape.heads), "no such head");
  EXPECT_EQ(with(PrefillField::kHead, 0, Word(good, shape, PrefillField::kHead, 0) ^ 1),
            "a tile is computed twice");
  EXPECT_EQ(with(PrefillField::kSequence, last, 2), "no such sequence");
  for (const PrefillField field : {PrefillField::kFirstRow, PrefillField::kRows,
                                   PrefillField::kLength, PrefillField::kTableAt}) {
    EXPECT_EQ(with(field, last, Word(good, shape, field, last) + 1),
              "an item is not its sequence's");
  }
  PrefillPlan plan = good;
  plan.words[shape.processors] -= 1;
  EXPECT_EQ(FaultOf(plan, sequences, shape), "items are left out");
  plan = good;
  plan.words[3] = good.items + 5;
  EXPECT_EQ(FaultOf(plan, sequences, shape), "a processor has less than no items");
  plan = good;
  plan.words.pop_back();
  EXPECT_EQ(FaultOf(plan, sequences, shape), "its arrays have the wrong size");
  const Sequences more = {sequences[0], sequences[1], {.first_row = 301, .rows = 2, .position = 0}};
  EXPECT_EQ(FaultOf(good, more, shape), "a tile is missing");
}

// What is computed for a sequence does not depend on the others; only where it is computed does.
TEST(LibraryPrefillPlan, OfAStepIsThatOfItsSequences) {
  std::mt19937 random(2);
  const PrefillShape shape = Shape();
  using Item = std::vector<int32_t>;
  const auto items = [&](const PrefillPlan& plan) {
    std::multiset<Item> all;
    for (int32_t i = 0; i < plan.items; ++i) {
      Item item;
      for (const PrefillField field :
           {PrefillField::kTile, PrefillField::kFirstRow, PrefillField::kRows,
            PrefillField::kLength, PrefillField::kHead}) {
        item.push_back(Word(plan, shape, field, i));
      }
      all.insert(item);
    }
    return all;
  };
  for (int i = 0; i < 50; ++i) {
    const Sequences sequences = RandomSequences(random);
    std::multiset<Item> parts;
    for (const PrefillRows& s : sequences) parts.merge(items(PlanPrefill({&s, 1}, shape)));
    EXPECT_EQ(items(PlanPrefill(sequences, shape)), parts);
  }
}

// No processor has more than the average and one tile more.
TEST(LibraryPrefillPlan, SpreadsTheWork) {
  const PrefillShape shape = Shape(32);
  const Sequences sequences = {{.first_row = 0, .rows = 8192, .position = 0}};
  const PrefillPlan plan = PlanPrefill(sequences, shape);
  std::vector<int64_t> loads;
  int64_t total = 0, longest = 0;
  for (int32_t p = 0; p < shape.processors; ++p) {
    int64_t load = 0;
    for (int32_t i = plan.words[p]; i < plan.words[p + 1]; ++i) {
      const int64_t keys = 256 + (Word(plan, shape, PrefillField::kTile, i) + 1) * int64_t{128};
      load += keys;
      longest = std::max(longest, keys);
    }
    total += load;
    loads.push_back(load);
  }
  EXPECT_LE(*std::ranges::max_element(loads), total / shape.processors + longest);
}

TEST(LibraryPrefill, FindsKeysAndValues) {
  for (const int32_t dim : {64, 128}) {
    for (const int32_t page : {16, 32, 64}) {
      for (const int32_t heads : {1, 2, 8}) {
        const KvLayout layout{
            .layers = 3, .kv_heads = heads, .head_dim = dim, .block_tokens = page};
        const Buffer memory(layout.BlockStride() * 4);
        const PagedKv kv{memory.as<std::byte>(), 4, layout};
        const KvPlanes planes = PlanesOf(kv, 1);
        ASSERT_TRUE(SupportsPrefill(planes));
        const PrefillStrides strides = StridesOf(planes);
        for (const int32_t block : {0, 3}) {
          for (int32_t head = 0; head < heads; ++head) {
            const int64_t at = block * strides.page + head * strides.head;
            EXPECT_EQ(static_cast<const void*>(strides.keys + at), kv.Keys(block, 1, head));
            EXPECT_EQ(static_cast<const void*>(strides.values + at), kv.Values(block, 1, head));
            EXPECT_EQ(strides.token, dim);
          }
        }
      }
    }
  }
}

TEST(LibraryPrefill, LeavesOtherPagesToOurs) {
  for (const KvDtype dtype : kKvDtypes) {
    const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 128, .dtype = dtype};
    const Buffer memory(layout.BlockStride());
    const KvPlanes planes = PlanesOf({memory.as<std::byte>(), 1, layout}, 0);
    EXPECT_EQ(SupportsPrefill(planes), dtype == KvDtype::kBf16) << KvDtypeName(dtype);
  }
}

// The tiles that were fastest on an H200, or within a tenth of the fastest.
TEST(LibraryGemm, ChoosesTheTilesThatWereFastest) {
  const auto tiles = [](int32_t outputs, int32_t inputs) {
    std::string names;
    for (const int32_t rows : {1, 16, 32, 64, 128, 512, 2048, 8192}) {
      const GemmChoice choice = ChooseGemm({.outputs = outputs, .inputs = inputs}, rows, 132);
      names += std::string(names.empty() ? "" : " ") + ShapeOf(choice.tile).name;
    }
    return names;
  };
  EXPECT_EQ(tiles(6144, 4096), "64x16 64x16 64x16 64x64 128x64 128x64 128x256 128x256");
  EXPECT_EQ(tiles(4096, 4096), "64x16 64x16 64x16 64x64 64x64 128x128 128x256 128x256");
  EXPECT_EQ(tiles(28672, 4096), "64x16 64x16 64x16 128x64 128x128 128x128 128x256 128x256");
  EXPECT_EQ(tiles(4096, 14336), "64x16 64x16 64x16 64x64 64x64 128x128 128x256 128x256");
  EXPECT_EQ(tiles(128256, 4096), "64x16 64x16 64x16 128x64 128x128 128x128 128x256 128x256");
}

TEST(LibraryGemm, VisitsTilesInBandsWhereThereAreManyRows) {
  const Weight weight{.outputs = 6144, .inputs = 4096};
  EXPECT_EQ(ChooseGemm(weight, 2048, 132).swizzle, 1);
  EXPECT_EQ(ChooseGemm(weight, 8192, 132).swizzle, 8);
}

// The start-up check of the tiles, with our kernels in the place of CUTLASS's.
absl::Status CheckTilesBy(const std::function<void(GemmTile, const GemmCall&)>& then) {
  const auto run = [&](GemmTile tile, const GemmCall& call) {
    const DeviceArray<float> slices(size_t{1} * SkinnySlices(call.weight) * call.rows *
                                    call.weight.outputs);
    const Product product =
        WideGemm(call.weight, call.input, call.rows, slices.data(), Slices::kAddedUp, nullptr);
    CopyOnDevice(call.output, product.data, sizeof(float) * call.rows * call.weight.outputs,
                 nullptr);
    then(tile, call);
    Synchronize(nullptr);
  };
  return CheckTiles(run, 132, nullptr);
}

TEST(LibraryTileCheck, PassesRightProducts) {
  const absl::Status status = CheckTilesBy([](GemmTile, const GemmCall&) {});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LibraryTileCheck, NamesATileWithOtherBits) {
  const absl::Status status = CheckTilesBy([](GemmTile tile, const GemmCall& call) {
    if (tile != GemmTile::k128x128) return;
    // One element of the last row, changed in its last bit.
    const int64_t at = int64_t{call.rows} * call.weight.outputs - 1;
    uint32_t bits = 0;
    CopyToHost(&bits, call.output + at, sizeof(bits), nullptr);
    Synchronize(nullptr);
    bits ^= 1;
    CopyToDevice(call.output + at, &bits, sizeof(bits), nullptr);
    Synchronize(nullptr);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("tiles of 128x128 has other bits"),
            std::string::npos)
      << status;
}

TEST(LibraryTileCheck, NamesATileThatLeavesRowsOut) {
  const absl::Status status = CheckTilesBy([](GemmTile tile, const GemmCall& call) {
    if (tile != GemmTile::k64x64) return;
    float* last = call.output + int64_t{call.rows - 1} * call.weight.outputs;
    FillDevice(last, 0xff, sizeof(float) * call.weight.outputs, nullptr);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("tiles of 64x64 is wrong"), std::string::npos)
      << status;
}

TEST(LibraryGemm, RefusesShapesWhoseRowsAreNotAligned) {
  EXPECT_TRUE(SupportsGemm({.outputs = 1028, .inputs = 520}));
  EXPECT_FALSE(SupportsGemm({.outputs = 1026, .inputs = 520}));
  EXPECT_FALSE(SupportsGemm({.outputs = 1028, .inputs = 516}));
  EXPECT_FALSE(SupportsGemm({.outputs = 0, .inputs = 8}));
}

TEST(LibraryFastDiv, DividesAsTheProcessorDoes) {
  std::mt19937 random(3);
  const auto check = [](uint32_t n, uint32_t d) {
    const flashinfer::uint_fastdiv divisor(d);
    uint32_t quotient = 0, remainder = 0;
    divisor.divmod(n, quotient, remainder);
    ASSERT_EQ(quotient, n / d) << n << " / " << d;
    ASSERT_EQ(remainder, n % d);
    ASSERT_EQ(n / divisor, n / d);
    ASSERT_EQ(n % divisor, n % d);
  };
  const std::vector<uint32_t> edges = {
      1,    2,    3,           7,           16,          64,          96,         1023,
      1024, 1025, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xfffffffeu, 0xffffffffu};
  for (const uint32_t d : edges) {
    for (const uint32_t n : edges) {
      check(n, d);
      check(n - 1, d);
    }
    for (int i = 0; i < 2000; ++i) check(static_cast<uint32_t>(random()), d);
  }
  for (int i = 0; i < 20000; ++i) {
    check(static_cast<uint32_t>(random()), static_cast<uint32_t>(random() >> (random() % 32)) | 1);
  }
}

}  // namespace
}  // namespace penstock::cuda::library
