#include "kernels/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace penstock {
namespace {

TEST(IsaTest, EveryMachineRunsThePortableOneAndItsBest) {
  const auto isas = SupportedIsas();
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(std::count(isas.begin(), isas.end(), BestIsa()), 1);
  EXPECT_EQ(ActiveIsa(), BestIsa());
}

TEST(IsaTest, ScopesNest) {
  const Isa before = ActiveIsa();
  {
    const ScopedIsa outer(Isa::kPortable);
    EXPECT_EQ(ActiveIsa(), Isa::kPortable);
    {
      const ScopedIsa inner(BestIsa());
      EXPECT_EQ(ActiveIsa(), BestIsa());
    }
    EXPECT_EQ(ActiveIsa(), Isa::kPortable);
  }
  EXPECT_EQ(ActiveIsa(), before);
}

}  // namespace
}  // namespace penstock
