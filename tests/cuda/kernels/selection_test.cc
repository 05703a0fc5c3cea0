// The kernels that choose pages, on the block emulator, against double precision and beside the
// CPU's functions on the same pages.

#include "kernels/cuda/selection/selection.h"

#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"
#include "kernels/selection/select_pages.h"
#include "tests/cuda/cases/selection_case.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/eviction/key_pages.h"

namespace penstock::cuda {
namespace {

using emulator::Copies;
using enum KvCode;

struct Variant {
  const char* name;
  SelectionCase selection;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
std::string NameOf(const testing::TestParamInfo<Variant>& info) { return info.param.name; }

class PageChoiceTest : public testing::TestWithParam<Variant> {};

TEST_P(PageChoiceTest, HasThePagesWithTheHighestBounds) {
  const SelectionCase& selection = GetParam().selection;
  const bool exact = selection.kv.keys == kBf16;
  std::vector<uint32_t> first;
  for (const Copies copies : {Copies::kLate, Copies::kEarly}) {
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(copies, order);
      const SelectionResult result = RunSelection(selection);
      EXPECT_LE(result.bounds, exact ? 0 : 4e-3);  // codes are rounded to bf16 once more
      EXPECT_LT(result.scores, exact ? 1e-6 : 4e-3);
      EXPECT_TRUE(result.best);
      if (first.empty()) first = result.chosen;
      EXPECT_EQ(result.chosen, first);
    }
  }
}

// The second sequence has more scores than a block of the choice has threads.
const Variant kVariants[] = {
    {"Bf16Dim128", {.kv = {.kv_heads = 2, .lengths = {16 * 9 + 5, 16 * 8}}}},
    {"ManyPages",
     {.kv = {.head_dim = 64, .page = 16, .lengths = {16 * 12, 16 * 300 + 1}}, .keep = 11}},
    {"Equal",
     {.kv = {.head_dim = 64, .lengths = {16 * 270 + 3, 16 * 20}}, .keep = 10, .equal = true}},
    {"OneQueryHead", {.kv = {.kv_heads = 3, .head_dim = 64, .lengths = {16 * 8}}, .group = 1}},
    {"LargePages", {.kv = {.head_dim = 64, .page = 128, .lengths = {128 * 8 + 90}}, .keep = 4}},
    {"F8", {.kv = {.keys = kF8, .values = kF8, .head_dim = 64, .lengths = {16 * 9 + 5}}}},
    {"I8Page32", {.kv = {.keys = kI8, .values = kI4, .page = 32, .lengths = {32 * 8 + 3}}}},
    {"I4", {.kv = {.keys = kI4, .values = kI4, .head_dim = 64, .lengths = {16 * 9 + 5}}}},
    {"Levels", {.kv = {.keys = kL3, .values = kL2, .head_dim = 64, .lengths = {16 * 9 + 5}}}},
};
INSTANTIATE_TEST_SUITE_P(Cases, PageChoiceTest, testing::ValuesIn(kVariants), NameOf);

// Bounds have the bits of the CPU's, in every format, and so has the choice.
class PagesOfBothTest : public testing::TestWithParam<KvDtype> {};

TEST_P(PagesOfBothTest, AreTheSame) {
  constexpr int32_t kHeads = 6, kKvHeads = 2, kDims = 64, kLayer = 1, kPages = 40, kKeep = 9;
  const ScopedIsa isa(Isa::kPortable);  // whose products are not rounded
  const KvLayout layout{.layers = 2,
                        .kv_heads = kKvHeads,
                        .head_dim = kDims,
                        .block_tokens = 16,
                        .dtype = GetParam()};
  KeyPages pages(layout, kPages * 16 - 3, 8, 5);
  PagedKv kv = pages.kv();
  PageBounds bounds;
  for (const uint32_t block : pages.blocks()) {
    bounds.Reserve(kv, block);
    for (int32_t head = 0; head < kKvHeads; ++head) {
      if (block != pages.blocks().back()) bounds.Compute(kv, block, kLayer, head);
    }
  }
  std::vector<float> queries = RandomData(12).Floats(kHeads * kDims);
  for (float& x : queries) x = ToFloat(ToBf16(x));
  std::vector<uint32_t> want(kKvHeads * kKeep);
  const SelectingRow row{.row = 0, .blocks = pages.blocks(), .keep = kKeep, .tables = want};
  SelectPages({}, {.queries = {queries.data(), {1, kHeads * kDims}},
                   .heads = kHeads,
                   .layout = layout,
                   .layer = kLayer,
                   .bounds = &bounds,
                   .rows = {&row, 1}});

  const size_t stride = PageBounds::BytesOf(layout) / sizeof(Bf16);
  const DeviceArray<Bf16> memory(static_cast<size_t>(kv.blocks) * stride);
  const int64_t layer_at = int64_t{kLayer} * kKvHeads * 2 * kDims;
  const PageBoundsView view{.layer = memory.data() + layer_at,
                            .block_stride = static_cast<int64_t>(stride)};
  const DeviceArray<uint32_t> table(pages.blocks());
  FindPageBounds(
      {.kv = PlanesOf(kv, kLayer), .blocks = table.data(), .count = kPages - 1, .bounds = view},
      nullptr);
  const std::vector<Bf16> got = memory.Read();
  for (int i = 0; i < kPages - 1; ++i) {
    const uint32_t block = pages.blocks()[static_cast<size_t>(i)];
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const Bf16* of = bounds.Of(layout, block, kLayer, head);
      const Bf16* there = got.data() + block * stride + layer_at + head * 2 * kDims;
      for (int e = 0; e < 2 * kDims; ++e) ASSERT_EQ(of[e].bits, there[e].bits) << i << " " << e;
    }
  }

  if (layout.IsRotated(penstock::KvPlane::kKeys)) cpu::RotateRows(queries.data(), kHeads, kDims);
  std::vector<Bf16> rounded;
  for (const float x : queries) rounded.push_back(ToBf16(x));
  const DeviceArray<Bf16> there(rounded);
  const DeviceArray<SelectRow> rows({{.query = 0, .table = 0, .pages = kPages, .keep = kKeep}});
  const DeviceArray<float> scores(kKvHeads * kPages);
  const DeviceArray<uint32_t> chosen(kKvHeads * kKeep);
  ChoosePages({.queries = there.data(),
               .query_stride = kHeads * kDims,
               .kv_heads = kKvHeads,
               .head_dim = kDims,
               .group = kHeads / kKvHeads,
               .tables = table.data(),
               .table_stride = kPages,
               .bounds = view,
               .rows = rows.data(),
               .count = 1,
               .pages_max = kPages,
               .scores = scores.data(),
               .chosen = chosen.data(),
               .chosen_stride = kKeep},
              nullptr);
  EXPECT_EQ(chosen.Read(), want);
}

INSTANTIATE_TEST_SUITE_P(Formats, PagesOfBothTest,
                         testing::Values(KvDtype::kBf16, KvDtype::kF8, KvDtype::kI8, KvDtype::kI4r,
                                         KvDtype::kK8v4, KvDtype::kK3v3, KvDtype::kK3v2),
                         [](const testing::TestParamInfo<KvDtype>& of) {
                           return std::string(KvDtypeName(of.param));
                         });

}  // namespace
}  // namespace penstock::cuda
