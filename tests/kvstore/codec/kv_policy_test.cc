#include "kvstore/names/kv_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kvstore/codec/codec.h"
#include "kvstore/names/block_hash.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The names that routers know are the codecs that workers have, in the same order.
TEST(KvPolicyTest, KnowsEveryLossyCodec) {
  std::vector<std::string> names;
  for (const KvCodecSpec& codec : AllKvCodecs()) {
    if (!IsLossless(codec)) names.push_back(KvCodecName(codec));
  }
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
            std::set<std::string>(LossyCodecNames().begin(), LossyCodecNames().end()));
  EXPECT_EQ(names.size(), LossyCodecNames().size());
}

TEST(KvPolicyTest, ParsesPolicies) {
  EXPECT_EQ(*ParseKvPolicy(""), "");
  EXPECT_EQ(*ParseKvPolicy("exact"), "");
  EXPECT_EQ(*ParseKvPolicy("near-lossless"), "near-lossless");
  EXPECT_EQ(*ParseKvPolicy("cgx2"), "cgx2");
  for (const char* wrong : {"lx16", "raw", "cgx6", "Exact", "i8,f8", "none", "all"}) {
    const auto policy = ParseKvPolicy(wrong);
    ASSERT_TRUE(absl::IsInvalidArgument(policy.status())) << wrong;
    EXPECT_THAT(Message(policy.status()), HasSubstr("near-lossless, i8, f8"));
  }
  EXPECT_LT(Message(ParseKvPolicy(std::string(10000, 'x')).status()).size(), 300u);
}

TEST(KvPolicyTest, AllowsWhatItSays) {
  EXPECT_THAT(LossyCodecsOf(""), IsEmpty());
  EXPECT_THAT(LossyCodecsOf("near-lossless"), ElementsAre("i8", "f8"));
  EXPECT_THAT(LossyCodecsOf("i4r"), ElementsAre("i4r"));
}

TEST(KvPolicyTest, ParsesWhatAWorkerAllows) {
  EXPECT_THAT(*ParseLossyCodecs("none"), IsEmpty());
  EXPECT_THAT(*ParseLossyCodecs(""), IsEmpty());
  EXPECT_THAT(*ParseLossyCodecs("all"), LossyCodecNames());
  EXPECT_THAT(*ParseLossyCodecs("cgx2,near-lossless,i8"), ElementsAre("i8", "f8", "cgx2"));
  for (const char* wrong : {"i8,", ",", "i8,none", "i8 ,f8", "lx16", "i8,all"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseLossyCodecs(wrong).status())) << wrong;
  }
}

// KV of one policy is never found under another, and exact KV has no policy.
TEST(KvPolicyTest, EveryPolicyHasAProvenanceOfItsOwn) {
  EXPECT_EQ(ProvenanceOf(""), "");
  EXPECT_EQ(ProvenanceOf("exact"), "");
  std::set<BlockId> roots;
  std::vector<std::string> policies = LossyCodecNames();
  policies.push_back("");
  policies.push_back("near-lossless");
  for (const std::string& policy : policies) {
    roots.insert(RootBlockId({.model_fingerprint = 1,
                              .kv_format = "bf16",
                              .tenant_salt = "",
                              .provenance = ProvenanceOf(policy)}));
  }
  EXPECT_EQ(roots.size(), policies.size());
}

}  // namespace
}  // namespace penstock
