#include "worker/handoff/kv_evictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr KvEvictions::Ability kAble{.runner = true, .step_tokens = 32};

TEST(KvEvictionsTest, TakesWhatTheFlagNames) {
  const auto evictions = KvEvictions::Open("snapkv,tova", kAble);
  ASSERT_TRUE(evictions.ok()) << evictions.status();
  const auto taken = evictions->Take("snapkv:100", 101, 101);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_TRUE(taken->has_value());
  EXPECT_EQ((*taken)->keep_tokens, 100u);
  EXPECT_EQ(*evictions->Take("snapkv:100", 100, 900), std::nullopt) << "there is nothing to drop";
  EXPECT_EQ(*evictions->Take("tova:100+50", 100, 149), std::nullopt) << "nor yet";
  EXPECT_NE(*evictions->Take("tova:100+50", 100, 150), std::nullopt);
  EXPECT_EQ(*evictions->Take("", 500, 900), std::nullopt);
  EXPECT_EQ(*evictions->Take("i8", 500, 900), std::nullopt);
  const auto other = evictions->Take("keydiff:100", 50, 50);
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << "another worker may";
  EXPECT_THAT(Message(other.status()), HasSubstr("--kv_eviction lacks keydiff"));
  EXPECT_TRUE(absl::IsInvalidArgument(evictions->Take("nonsense", 50, 50).status()));
  EXPECT_EQ((*evictions->Take("snapkv:100@90-101", 101, 101))->spans.size(), 1u);
  EXPECT_THAT(Message(evictions->Take("snapkv:100@90-102", 101, 101).status()),
              HasSubstr("whose spans end at 102; the prompt has 101 tokens"));
  v1::WorkerState state;
  evictions->Describe(&state);
  EXPECT_EQ(state.kv_evictions_size(), 2);
}

TEST(KvEvictionsTest, NoneIsNone) {
  const auto evictions = KvEvictions::Open("none", {});
  ASSERT_TRUE(evictions.ok()) << evictions.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(evictions->Take("snapkv:100", 500, 500).status()));
}

TEST(KvEvictionsTest, WhatCannotBeNamesTheFlag) {
  EXPECT_THAT(Message(KvEvictions::Open("pyramidkv", kAble).status()),
              HasSubstr("kv_eviction: KV eviction \"pyramidkv\" is unknown"));
  const auto gpu = KvEvictions::Open("all", {.runner = false, .step_tokens = 512});
  EXPECT_TRUE(absl::IsFailedPrecondition(gpu.status()));
  EXPECT_THAT(Message(gpu.status()),
              HasSubstr("kv_eviction is all, which needs a kv_format without a span"));
  EXPECT_THAT(Message(KvEvictions::Open("all", {.runner = true, .step_tokens = 31}).status()),
              HasSubstr("needs chunk_tokens of at least 32, not 31"));
}

}  // namespace
}  // namespace penstock
