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
  EXPECT_EQ(ParseJudgedCodec("pages:i8")->pages, (KvPageFormat{.dtype = KvDtype::kI8}));
  EXPECT_EQ(ParseJudgedCodec("pages:k3v3+128")->pages, (KvPageFormat{KvDtype::kK3v3, 128}));
  EXPECT_EQ(ParseJudgedCodec("once:k3v3c+128")->once, (KvPageFormat{KvDtype::kK3v3, 128, true}));
  EXPECT_EQ(ParseJudgedCodec("quest:128")->selection->tokens, 128u);
  EXPECT_FALSE(ParseJudgedCodec("tova:64")->EvictsAnswer());
  EXPECT_TRUE(ParseJudgedCodec("tova:64+32")->EvictsAnswer());
}

TEST(JudgedCodec, PoliciesOnPagesOfAFormat) {
  const JudgedCodec codec = ParseJudgedCodec("pages:i8,tova:64+32").value();
  EXPECT_EQ(codec.pages, (KvPageFormat{.dtype = KvDtype::kI8}));
  EXPECT_TRUE(codec.EvictsAnswer());
  EXPECT_EQ(codec.name, "pages:i8,tova:64+32");
  EXPECT_TRUE(ParseJudgedCodec("pages:i4r,blend:15")->blend);
  EXPECT_THAT(ErrorOf("pages:i8,cgx3"), HasSubstr("behind its comma"));
  EXPECT_THAT(ErrorOf("pages:i8,tova:1"), HasSubstr("TOKENS 64 to"));
}

TEST(JudgedCodec, Blends) {
  EXPECT_EQ(ParseJudgedCodec("blend:15")->blend->blend, KvBlend{.percent = 15});
  EXPECT_FALSE(ParseJudgedCodec("blend:moved")->blend->blend);
  EXPECT_TRUE(ParseJudgedCodec("blend:moved")->blend->moves_keys);
  EXPECT_FALSE(ParseJudgedCodec("blend:naive")->blend->moves_keys);
  EXPECT_THAT(ErrorOf("blend:0"), HasSubstr("PERCENT 1 to 100"));
}

TEST(JudgedCodec, BytesOnADecodeWorker) {
  const KvLayout layout{.layers = 5, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
  const int64_t block = 5 * 2 * 2 * 16 * 64 * 2;
  const auto bytes = [&](const std::string& name) {
    return ResidentBytes(ParseJudgedCodec(name).value(), layout, 1000, 1128);
  };
  EXPECT_EQ(bytes("cgx3"), 71 * block) << "a codec is for the wire and the tiers";
  EXPECT_EQ(bytes("blend:15"), 71 * block);
  EXPECT_EQ(bytes("snapkv:128"), 16 * block) << "the answer stays";
  EXPECT_EQ(bytes("tova:128+32"), 10 * block) << "it is compacted when it is full";
  EXPECT_EQ(bytes("quest:128"), 71 * (block + block / 16)) << "bounds are beside the pages";
  EXPECT_LT(bytes("pages:i8"), 36 * block + 71 * 4096);
}

TEST(JudgedCodec, WrongNamesAreRefused) {
  EXPECT_THAT(ErrorOf("i9"), HasSubstr("known are the codecs raw, lx16,"));
  EXPECT_THAT(ErrorOf("near-lossless"), HasSubstr("cannot be evaluated"));
  EXPECT_THAT(ErrorOf("pages:i9"), HasSubstr("no format of pages"));
  EXPECT_THAT(ErrorOf("once:bf16"), HasSubstr("no format of coded pages"));
  EXPECT_THAT(ErrorOf("once:cgx3"), HasSubstr("no format of coded pages"));
  EXPECT_THAT(ErrorOf("pages:k3v3+100"), HasSubstr("no format of pages"));
  EXPECT_THAT(ErrorOf("pages:k3v3+128,snapkv:256"), HasSubstr("pages without a span"));
  EXPECT_THAT(ErrorOf("snapkw:64"), HasSubstr("snapkv"));
  EXPECT_THAT(ErrorOf("snapkv:63"), HasSubstr("TOKENS 64 to"));
  EXPECT_THAT(ErrorOf("h2o:64+129"), HasSubstr("at most 128 for h2o"));
  EXPECT_THAT(ErrorOf("oracle:63"), HasSubstr("is unknown"));
  EXPECT_THAT(ErrorOf("tova:64+15"), HasSubstr("SLACK 16 to"));
}

}  // namespace
}  // namespace penstock
