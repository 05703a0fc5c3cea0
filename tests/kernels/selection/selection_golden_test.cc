// The pages that tests/golden/make_selection.py chose, and its attention to them.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/kv_rows.h"
#include "kernels/selection/select_pages.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr int32_t kHeads = 6, kKvHeads = 2, kDim = 16;

// As draw() in make_selection.py.
std::vector<float> Draw(uint64_t seed, int64_t count) {
  std::vector<float> numbers;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    numbers.push_back((static_cast<float>(state >> 57) - 64) / 64);
  }
  return numbers;
}

class Case {
 public:
  explicit Case(const json& golden)
      : tokens_(golden["tokens"]),
        layout_{.layers = 1,
                .kv_heads = kKvHeads,
                .head_dim = kDim,
                .block_tokens = golden["page"].get<int32_t>()},
        numbers_(Draw(golden["seed"], kDim * (kHeads + 2 * kKvHeads * tokens_))),
        memory_(static_cast<size_t>(layout_.BlocksFor(tokens_)) * layout_.BlockStride()) {
    const float* next = numbers_.data() + kHeads * kDim;
    for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        for (int64_t token = 0; token < tokens_; ++token, next += kDim) {
          cpu::StoreKvRow(kv(),
                          {.block = static_cast<uint32_t>(token / layout_.block_tokens),
                           .kv_head = head,
                           .plane = plane,
                           .slot = token % layout_.block_tokens},
                          next);
        }
      }
    }
    for (int64_t i = 0; i < layout_.BlocksFor(tokens_); ++i) {
      blocks_.push_back(static_cast<uint32_t>(i));
    }
  }

  // A block is its page here.
  std::vector<uint32_t> Select(int64_t keep) {
    PageBounds bounds;
    for (size_t i = 0; i + kLastPages < blocks_.size(); ++i) {
      bounds.Reserve(kv(), blocks_[i]);
      for (int32_t head = 0; head < kKvHeads; ++head) bounds.Compute(kv(), blocks_[i], 0, head);
    }
    std::vector<uint32_t> tables(static_cast<size_t>(kKvHeads * keep));
    const SelectingRow row{.blocks = blocks_, .keep = keep, .tables = tables};
    SelectPages({}, {.queries = queries(),
                     .heads = kHeads,
                     .layout = layout_,
                     .bounds = &bounds,
                     .rows = {&row, 1}});
    return tables;
  }

  std::vector<float> Attend(std::span<const uint32_t> tables, int64_t keep) {
    std::vector<float> output(kHeads * kDim);
    const AttentionScratch scratch(kDim, 1);
    const AttentionSequence sequence{
        .rows = 1,
        .position = (keep - 1) * layout_.block_tokens + (tokens_ - 1) % layout_.block_tokens,
        .blocks = tables,
        .head_blocks = keep};
    Attention({}, {.queries = queries(),
                   .output = {output.data(), {1, kHeads * kDim}},
                   .heads = kHeads,
                   .kv = kv(),
                   .scale = 0.25f,
                   .sequences = {&sequence, 1},
                   .scratch = &scratch});
    return output;
  }

 private:
  View<const float, 2> queries() const { return {numbers_.data(), {1, kHeads * kDim}}; }
  PagedKv kv() const {
    return {
        .arena = memory_.as<std::byte>(), .blocks = layout_.BlocksFor(tokens_), .layout = layout_};
  }

  const int64_t tokens_;
  const KvLayout layout_;
  const std::vector<float> numbers_;
  const Buffer memory_;
  std::vector<uint32_t> blocks_;
};

class SelectionGoldenTest : public ::testing::TestWithParam<Isa> {};

TEST_P(SelectionGoldenTest, PagesAndAttentionAreThoseOfNumpy) {
  const ScopedIsa isa(GetParam());
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 0.01 : 1e-5;
  std::ifstream file(SourceFolder() + "/tests/golden/selection.json");
  const json golden = json::parse(file);
  ASSERT_GE(golden.size(), 12u);
  for (const json& one : golden) {
    SCOPED_TRACE(fmt::format("seed {}", one["seed"].get<int>()));
    Case test(one);
    const int64_t keep = one["keep"];
    const std::vector<uint32_t> tables = test.Select(keep);
    std::vector<uint32_t> expected;
    for (const json& head : one["pages"]) {
      for (const json& page : head) expected.push_back(page);
    }
    ASSERT_EQ(tables, expected);
    const std::vector<float> output = test.Attend(tables, keep);
    for (size_t i = 0; i < output.size(); ++i) {
      EXPECT_NEAR(output[i], one["output"][i].get<double>(), tolerance) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SelectionGoldenTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& test) { return std::string(IsaName(test.param)); });

}  // namespace
}  // namespace penstock
