#include "worker/handoff/kv_blends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr KvBlends::Ability kAble{.runner = true, .step_tokens = 512, .cache = true};

TEST(KvBlendsTest, TakesBlendsAndNothingElse) {
  const auto blends = KvBlends::Open(0.25, kAble);
  ASSERT_TRUE(blends.ok()) << blends.status();
  EXPECT_EQ(blends->deviation_max(), 0.25f);
  EXPECT_EQ((*blends->Take("blend:15"))->percent, 15u);
  EXPECT_EQ(*blends->Take(""), std::nullopt);
  EXPECT_EQ(*blends->Take("quest:100"), std::nullopt);
  EXPECT_TRUE(absl::IsInvalidArgument(blends->Take("blend:0").status()));
  v1::WorkerState state;
  blends->Describe(&state);
  EXPECT_TRUE(state.kv_blends());
}

TEST(KvBlendsTest, ZeroIsNone) {
  const auto blends = KvBlends::Open(0, {});
  ASSERT_TRUE(blends.ok()) << blends.status();
  const auto refused = blends->Take("blend:15").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << "another worker may";
  EXPECT_THAT(Message(refused), HasSubstr("this worker's --kv_blend_deviation is 0; replan"));
  v1::WorkerState state;
  blends->Describe(&state);
  EXPECT_FALSE(state.kv_blends());
}

TEST(KvBlendsTest, WhatCannotBeNamesTheFlag) {
  KvBlends::Ability without = kAble;
  without.runner = false;
  EXPECT_THAT(Message(KvBlends::Open(0.5, without).status()),
              HasSubstr("kv_blend_deviation is 0.5, which needs a model of at least three layers"));
  without = kAble;
  without.cache = false;
  EXPECT_THAT(Message(KvBlends::Open(0.5, without).status()), HasSubstr("needs the prefix cache"));
  without = kAble;
  without.step_tokens = 511;
  EXPECT_THAT(Message(KvBlends::Open(0.5, without).status()),
              HasSubstr("needs chunk_tokens of at least 512, not 511"));
}

}  // namespace
}  // namespace penstock
