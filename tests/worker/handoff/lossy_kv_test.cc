#include "worker/handoff/lossy_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// The layout of the bundled model, which has a calibration.
constexpr KvLayout kLayout{.layers = 5, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};

std::vector<std::string> Names(const std::vector<KvCodecSpec>& codecs) {
  std::vector<std::string> names;
  for (const KvCodecSpec& codec : codecs) names.push_back(KvCodecName(codec));
  return names;
}

TEST(LossyKvTest, NoneIsNone) {
  const auto lossy = LossyKv::Open("none", TempFolder().path(), kLayout);
  ASSERT_TRUE(lossy.ok()) << lossy.status();
  EXPECT_TRUE((*lossy)->codecs().empty());
  EXPECT_EQ((*lossy)->calibration(), nullptr);
  EXPECT_TRUE((*lossy)->AllowedBy("i8")->empty());
}

TEST(LossyKvTest, APolicyAllowsWhatTheWorkerDoesToo) {
  const auto lossy = LossyKv::Open("cgx2,i8", ModelFolder(), kLayout);
  ASSERT_TRUE(lossy.ok()) << lossy.status();
  EXPECT_EQ(Names((*lossy)->codecs()), (std::vector<std::string>{"i8", "cgx2"}));
  EXPECT_EQ(Names(*(*lossy)->AllowedBy("near-lossless")), std::vector<std::string>{"i8"});
  EXPECT_EQ(Names(*(*lossy)->AllowedBy("cgx2")), std::vector<std::string>{"cgx2"});
  EXPECT_TRUE((*lossy)->AllowedBy("")->empty());
  EXPECT_TRUE((*lossy)->AllowedBy("kv2")->empty());
  EXPECT_TRUE(absl::IsInvalidArgument((*lossy)->AllowedBy("nonsense").status()));
  v1::WorkerState state;
  (*lossy)->Describe(&state);
  EXPECT_EQ(state.lossy_codecs_size(), 2);
  EXPECT_EQ(state.kv_calibration(), (*lossy)->calibration()->id());
}

TEST(LossyKvTest, MissingTablesAreAnErrorThatNamesTheFlag) {
  const auto lossy = LossyKv::Open("cgx2", TempFolder().path(), kLayout);
  EXPECT_TRUE(absl::IsFailedPrecondition(lossy.status()));
  EXPECT_THAT(Message(lossy.status()), HasSubstr("lossy_kv: cgx2 cannot be used"));
  EXPECT_THAT(Message(lossy.status()), HasSubstr("penstock calibrate"));
  // But of all that there is, those that can be used are.
  const auto all = LossyKv::Open("all", TempFolder().path(), kLayout);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(Names((*all)->codecs()),
            (std::vector<std::string>{"i8", "f8", "f8e5m2", "k8v4", "i4r", "kv2"}));
}

TEST(LossyKvTest, WhatCannotBeNamesTheFlag) {
  KvLayout quantised = kLayout;
  quantised.dtype = KvDtype::kI8;
  KvLayout other = kLayout;
  other.kv_heads = 4;  // not the calibration's model
  for (const auto& [flag, layout, why] : {std::tuple("i8", quantised, "needs kv_format=bf16"),
                                          {"i9", kLayout, "lossy codec \"i9\" is unknown"},
                                          {"cgx1", other, "calibration"}}) {
    const auto lossy = LossyKv::Open(flag, ModelFolder(), layout);
    ASSERT_FALSE(lossy.ok()) << flag;
    EXPECT_THAT(Message(lossy.status()), HasSubstr("lossy_kv"));
    EXPECT_THAT(Message(lossy.status()), HasSubstr(why));
  }
}

}  // namespace
}  // namespace penstock
