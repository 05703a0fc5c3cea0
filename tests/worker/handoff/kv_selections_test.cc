#include "worker/handoff/kv_selections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(KvSelectionsTest, TakesWhatTheFlagNames) {
  const auto selections = KvSelections::Open("quest", true);
  ASSERT_TRUE(selections.ok()) << selections.status();
  const auto taken = selections->Take("quest:100");
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ((*taken)->tokens, 100u);
  EXPECT_EQ(*selections->Take(""), std::nullopt);
  EXPECT_EQ(*selections->Take("snapkv:100"), std::nullopt) << "no selection";
  EXPECT_TRUE(absl::IsInvalidArgument(selections->Take("nonsense").status()));
  v1::WorkerState state;
  selections->Describe(&state);
  ASSERT_EQ(state.kv_selections_size(), 1);
  EXPECT_EQ(state.kv_selections(0), "quest");
}

TEST(KvSelectionsTest, NoneIsNone) {
  const auto selections = KvSelections::Open("none", false);
  ASSERT_TRUE(selections.ok()) << selections.status();
  const auto refused = selections->Take("quest:100").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << "another worker may";
  EXPECT_THAT(Message(refused), HasSubstr("this worker's --kv_selection lacks quest; replan"));
}

TEST(KvSelectionsTest, WhatCannotBeNamesTheFlag) {
  EXPECT_THAT(Message(KvSelections::Open("snapkv", true).status()),
              HasSubstr("kv_selection: KV selection \"snapkv\" is unknown"));
  const auto gpu = KvSelections::Open("all", false);
  EXPECT_TRUE(absl::IsFailedPrecondition(gpu.status()));
  EXPECT_THAT(
      Message(gpu.status()),
      HasSubstr("kv_selection is all, which needs a model without sliding windows and latents"));
}

}  // namespace
}  // namespace penstock
