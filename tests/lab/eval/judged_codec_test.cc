#include "lab/eval/judged_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& name) {
  return std::string(ParseJudgedCodec(name).status().message());
}

TEST(JudgedCodec, NamesOfAllKinds) {
  for (const JudgedCodec& codec : AllJudgedCodecs()) {
    const auto parsed = ParseJudgedCodec(codec.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->spec, codec.spec);
  }
  EXPECT_EQ(ParseJudgedCodec("pages:i8")->pages, KvDtype::kI8);
  EXPECT_EQ(ParseJudgedCodec("quest:128")->selection->tokens, 128u);
  EXPECT_FALSE(ParseJudgedCodec("tova:64")->EvictsAnswer());
  EXPECT_TRUE(ParseJudgedCodec("tova:64+32")->EvictsAnswer());
}

TEST(JudgedCodec, Blends) {
  EXPECT_EQ(ParseJudgedCodec("blend:15")->blend->blend, KvBlend{.percent = 15});
  EXPECT_FALSE(ParseJudgedCodec("blend:moved")->blend->blend);
  EXPECT_TRUE(ParseJudgedCodec("blend:moved")->blend->moves_keys);
  EXPECT_FALSE(ParseJudgedCodec("blend:naive")->blend->moves_keys);
  EXPECT_THAT(ErrorOf("blend:0"), HasSubstr("PERCENT 1 to 100"));
}

TEST(JudgedCodec, WrongNamesAreRefused) {
  EXPECT_THAT(ErrorOf("i9"), HasSubstr("known are the codecs raw, lx16,"));
  EXPECT_THAT(ErrorOf("near-lossless"), HasSubstr("cannot be evaluated"));
  EXPECT_THAT(ErrorOf("pages:i9"), HasSubstr("no format of pages"));
  EXPECT_THAT(ErrorOf("snapkw:64"), HasSubstr("snapkv"));
  EXPECT_THAT(ErrorOf("snapkv:63"), HasSubstr("TOKENS 64 to"));
  EXPECT_THAT(ErrorOf("snapkv:64+32"), HasSubstr("METHOD tova, keydiff"));
  EXPECT_THAT(ErrorOf("tova:64+15"), HasSubstr("SLACK 16 to"));
}

}  // namespace
}  // namespace penstock
