#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/cuda/cases/quantised_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Equal as numbers: the sign of a zero adds nothing to a sum.
bool SameWeights(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  return std::ranges::equal(a, b, [](Bf16 x, Bf16 y) { return ToFloat(x) == ToFloat(y); });
}

// Shapes with partial chunks, panels and blocks of both sections.
constexpr QuantisedCase kShapes[] = {{.rows = 1, .inputs = 256, .outputs = 96},
                                     {.rows = 7, .inputs = 1160, .outputs = 72},
                                     {.rows = 13, .inputs = 200, .outputs = 168},
                                     {.rows = 30, .inputs = 1040, .outputs = 24},
                                     {.rows = 75, .inputs = 520, .outputs = 40}};

TEST(Quantised, WeightsAndProductsAreTheHosts) {
  for (const auto order : {InputOrder::kOwn, InputOrder::kNatural}) {
    for (const CodeForm& form : AllForms(order)) {
      for (QuantisedCase c : kShapes) {
        c.form = form;
        SCOPED_TRACE(NameOf(form) + " " + std::to_string(c.rows) + " rows");
        const QuantisedResult result = RunQuantised(c);
        EXPECT_TRUE(SameWeights(result.expanded, result.reference));
        EXPECT_LT(result.relative, 1e-6);
        if (order == InputOrder::kOwn) {
          EXPECT_TRUE(SameBits(result.product, result.of_bf16));
        }
      }
    }
  }
}

// So many outputs that a warp computes a panel by itself: the bits of a product of some of them.
TEST(Quantised, ManyOutputsHaveTheSameBits) {
  for (const auto order : {InputOrder::kOwn, InputOrder::kNatural}) {
    for (const int rows : {5, 11}) {
      const QuantisedCase c{
          .form = AllForms(order)[3], .rows = rows, .inputs = 264, .outputs = 2 * (16384 + 24)};
      const QuantisedResult result = RunQuantised(c);
      EXPECT_TRUE(SameWeights(result.expanded, result.reference));
      EXPECT_LT(result.relative, 1e-6);
      if (order == InputOrder::kOwn) {
        EXPECT_TRUE(SameBits(result.product, result.of_bf16));
      }
    }
  }
}

TEST(Quantised, AnyScheduleHasTheSameBits) {
  for (const CodeForm& form : {AllForms(InputOrder::kOwn)[4], AllForms(InputOrder::kNatural)[8]}) {
    const QuantisedCase c{.form = form, .rows = 9, .inputs = 1160, .outputs = 40};
    const std::vector<float> want = RunQuantised(c).product;
    for (const auto copies : {emulator::Copies::kLate, emulator::Copies::kEarly}) {
      for (const auto schedule_order : emulator::kOrders) {
        const emulator::ScopedSchedule schedule(copies, schedule_order);
        const QuantisedResult result = RunQuantised(c);
        EXPECT_TRUE(SameBits(result.product, want));
        EXPECT_TRUE(SameWeights(result.expanded, result.reference));
      }
    }
  }
}

TEST(Quantised, OtherRowsChangeNoBit) {
  for (const auto order : {InputOrder::kOwn, InputOrder::kNatural}) {
    for (const CodeForm& form : AllForms(order)) {
      QuantisedCase c{.form = form, .rows = 75, .inputs = 1040, .outputs = 40};
      const std::vector<float> all = RunQuantised(c).product;
      for (const int rows : {1, 9, 20, 40, 64}) {
        c.rows = rows;
        const std::vector<float> some = RunQuantised(c).product;
        EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0)
            << NameOf(form) << " " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
