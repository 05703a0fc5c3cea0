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
  EXPECT_LT(Message(ParseKvPolicy(std::string(10000, 'x')).status()).size(), 450u);
}

TEST(KvPolicyTest, ParsesEvictions) {
  for (const std::string& name : KvEvictionNames()) {
    const std::string policy = name + ":64";
    EXPECT_EQ(*ParseKvPolicy(policy), policy);
    const auto eviction = EvictionOf(policy);
    ASSERT_TRUE(eviction.has_value()) << policy;
    EXPECT_EQ(KvEvictionName(eviction->method), name);
    EXPECT_EQ(eviction->keep_tokens, 64u);
    EXPECT_THAT(LossyCodecsOf(policy), IsEmpty());
    EXPECT_THAT(KvMethodsOf(policy), ElementsAre(name));
  }
  EXPECT_EQ(EvictionOf("tova:1048576")->keep_tokens, kKeepTokensMax);
  for (const char* wrong : {"snapkv", "snapkv:", ":64", "snapkv:63", "snapkv:1048577",
                            "snapkv:99999999999", "snapkv:+64", "snapkv: 64", "snapkv:64 ",
                            "snapkv:064", "snapkv:-1", "SnapKV:64", "i8:64", "snapkv:64:1"}) {
    EXPECT_THAT(Message(ParseKvPolicy(wrong).status()), HasSubstr("TOKENS 64 to 1048576")) << wrong;
    EXPECT_EQ(EvictionOf(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(EvictionOf(""), std::nullopt);
  EXPECT_EQ(EvictionOf("i8"), std::nullopt);
  EXPECT_THAT(KvMethodsOf("near-lossless"), ElementsAre("i8", "f8"));
}

TEST(KvPolicyTest, ParsesSelections) {
  EXPECT_EQ(*ParseKvPolicy("quest:64"), "quest:64");
  EXPECT_EQ(SelectionOf("quest:1024")->tokens, 1024u);
  EXPECT_EQ(EvictionOf("quest:1024"), std::nullopt);
  EXPECT_EQ(EvictedTokens("quest:64", 5000), 0u);
  EXPECT_THAT(LossyCodecsOf("quest:64"), IsEmpty());
  EXPECT_THAT(KvMethodsOf("quest:64"), ElementsAre("quest"));
  for (const char* wrong : {"quest", "quest:", "quest:63", "quest:1048577", "Quest:64"}) {
    EXPECT_THAT(Message(ParseKvPolicy(wrong).status()), HasSubstr("quest and TOKENS 64 to"))
        << wrong;
    EXPECT_EQ(SelectionOf(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(SelectionOf("snapkv:64"), std::nullopt);
  EXPECT_THAT(*ParseKvSelections("none"), IsEmpty());
  EXPECT_THAT(*ParseKvSelections("all"), ElementsAre("quest"));
  EXPECT_THAT(*ParseKvSelections("quest"), ElementsAre("quest"));
  EXPECT_THAT(Message(ParseKvSelections("snapkv").status()),
              HasSubstr("KV selection \"snapkv\" is unknown; allowed are none, all, quest"));
}

TEST(KvPolicyTest, ASelectionKeepsThePromptExact) {
  EXPECT_TRUE(KeepsPromptExact(""));
  EXPECT_TRUE(KeepsPromptExact("exact"));
  EXPECT_TRUE(KeepsPromptExact("quest:64"));
  EXPECT_FALSE(KeepsPromptExact("snapkv:64"));
  EXPECT_FALSE(KeepsPromptExact("i8"));
  EXPECT_EQ(ProvenanceOf("quest:64"), "") << "its blocks have exact names";
}

TEST(KvPolicyTest, AnEvictionDropsWhatIsBeyondItsTokens) {
  EXPECT_EQ(EvictedTokens("snapkv:100", 100), 0u);
  EXPECT_EQ(EvictedTokens("snapkv:100", 101), 1u);
  EXPECT_EQ(EvictedTokens("snapkv:100", 5000), 4900u);
  EXPECT_EQ(EvictedTokens("i8", 5000), 0u);
  EXPECT_EQ(EvictedTokens("", 5000), 0u);
}

TEST(KvPolicyTest, ParsesEvictionsWhileDecoding) {
  for (const char* method : {"h2o", "tova", "keydiff", "keynorm", "streaming", "random"}) {
    const std::string policy = fmt::format("{}:64+16", method);
    EXPECT_EQ(*ParseKvPolicy(policy), policy);
    const auto eviction = EvictionOf(policy);
    ASSERT_TRUE(eviction.has_value()) << policy;
    EXPECT_EQ(eviction->keep_tokens, 64u);
    EXPECT_EQ(eviction->slack_tokens, 16u);
    EXPECT_EQ(eviction->limit(), 80u);
    EXPECT_THAT(KvMethodsOf(policy), ElementsAre(method));
    EXPECT_FALSE(KeepsPromptExact(policy));
  }
  EXPECT_EQ(EvictionOf("snapkv:64+32")->slack_tokens, 32u) << "it observes 32 tokens";
  EXPECT_EQ(EvictionOf("h2o:64+128")->slack_tokens, 128u);
  EXPECT_EQ(EvictionOf("tova:64+1048576")->slack_tokens, 1048576u);
  for (const char* wrong :
       {"snapkv:64+31", "h2o:64+15", "h2o:64+129", "tova:64+15", "tova:64+", "tova:64+016",
        "tova:64+1048577", "tova:64+-16", "tova:64+16+16", "tova:64+16 "}) {
    EXPECT_THAT(Message(ParseKvPolicy(wrong).status()),
                HasSubstr("METHOD snapkv, h2o, tova, keydiff, keynorm, streaming, random and SLACK "
                          "16 to 1048576, 32 or more for snapkv, at most 128 for h2o"))
        << wrong;
    EXPECT_EQ(EvictionOf(wrong), std::nullopt) << wrong;
  }
  for (const char* wrong : {"tova:+16", "tova:63+16", "quest:64+16", "i8+16"}) {
    EXPECT_THAT(Message(ParseKvPolicy(wrong).status()), HasSubstr("TOKENS 64 to 1048576")) << wrong;
  }
}

// The schedule against a sequence that grows token by token.
TEST(KvPolicyTest, ASequenceIsCompactedWheneverItIsFull) {
  for (const uint32_t keep : {64u, 100u}) {
    for (const uint32_t slack : {16u, 33u, 500u}) {
      for (const uint32_t prompt : {1u, 63u, 64u, 65u, 100u, 300u}) {
        const KvEviction eviction{
            .method = KvEvictionMethod::kTova, .keep_tokens = keep, .slack_tokens = slack};
        uint32_t evicted = prompt > keep ? prompt - keep : 0, most = prompt - evicted;
        EXPECT_EQ(eviction.EvictedAt(prompt, prompt), evicted);
        uint32_t next = eviction.NextCompaction(prompt, prompt);
        for (uint32_t tokens = prompt + 1; tokens < prompt + 700; ++tokens) {
          EXPECT_EQ(next == tokens, tokens - evicted == keep + slack);
          most = std::max(most, tokens - evicted);
          if (tokens - evicted == keep + slack) evicted += slack;
          if (next == tokens) next = eviction.NextCompaction(prompt, tokens);
          ASSERT_EQ(eviction.EvictedAt(prompt, tokens), evicted) << prompt << " " << tokens;
          EXPECT_EQ(eviction.HeldMax(prompt, tokens), most);
        }
      }
    }
  }
  EXPECT_EQ(EvictedTokens("tova:64+16", 64, 79), 0u);
  EXPECT_EQ(EvictedTokens("tova:64+16", 64, 80), 16u);
  EXPECT_EQ(EvictedTokens("tova:64", 70, 5000), 6u);
  EXPECT_EQ(EvictedTokens("", 70, 5000), 0u);
}

TEST(KvPolicyTest, WhoMayEvictMuchMayEvictLess) {
  EXPECT_TRUE(Permits("tova:64+32", "tova:64+32"));
  EXPECT_TRUE(Permits("tova:64+32", "tova:65+33"));
  EXPECT_TRUE(Permits("tova:64+32", "tova:64"));
  EXPECT_FALSE(Permits("tova:64+32", "tova:64+31"));
  EXPECT_FALSE(Permits("tova:64", "tova:64+32"));
  EXPECT_TRUE(Permits("i8", "i8"));
  EXPECT_FALSE(Permits("i8", "f8"));
  EXPECT_TRUE(Permits("snapkv:256", "snapkv:256"));
  EXPECT_TRUE(Permits("snapkv:256", "snapkv:1024"));
  EXPECT_FALSE(Permits("snapkv:256", "snapkv:255"));
  EXPECT_FALSE(Permits("snapkv:256", "tova:256"));
  EXPECT_FALSE(Permits("snapkv:256", "i8"));
  EXPECT_FALSE(Permits("", "snapkv:256"));
  EXPECT_TRUE(Permits("quest:256", "quest:257"));
  EXPECT_FALSE(Permits("quest:256", "quest:255"));
  EXPECT_FALSE(Permits("quest:256", "snapkv:256"));
  EXPECT_FALSE(Permits("snapkv:256", "quest:256"));
}

TEST(KvPolicyTest, ParsesTheEvictionsOfAWorker) {
  EXPECT_THAT(*ParseKvEvictions("none"), IsEmpty());
  EXPECT_THAT(*ParseKvEvictions(""), IsEmpty());
  EXPECT_THAT(*ParseKvEvictions("all"), KvEvictionNames());
  EXPECT_THAT(*ParseKvEvictions("tova,snapkv"), ElementsAre("tova", "snapkv"));
  for (const char* wrong : {"snapkv,", ",", "snapkv:64", "snapkv tova", "all,tova", "pyramidkv"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseKvEvictions(wrong).status())) << wrong;
  }
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

TEST(KvPolicyTest, ABlendHasAPercentage) {
  EXPECT_EQ(*ParseKvPolicy("blend:15"), "blend:15");
  EXPECT_EQ(BlendOf("blend:15")->percent, 15u);
  EXPECT_EQ(BlendOf("blend:100")->percent, 100u);
  EXPECT_EQ(BlendOf("quest:64"), std::nullopt);
  for (const char* wrong :
       {"blend", "blend:", "blend:0", "blend:101", "blend:015", "blend:1.5", "blend:15+16"}) {
    EXPECT_EQ(BlendOf(wrong), std::nullopt) << wrong;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseKvPolicy(wrong).status())) << wrong;
  }
  EXPECT_THAT(KvMethodsOf("blend:15"), ElementsAre("blend"));
  EXPECT_THAT(LossyCodecsOf("blend:15"), IsEmpty());
  EXPECT_FALSE(KeepsPromptExact("blend:100"));
  EXPECT_TRUE(Permits("blend:15", "blend:20"));
  EXPECT_FALSE(Permits("blend:15", "blend:14"));
  EXPECT_FALSE(Permits("snapkv:64", "blend:20"));
  // Rounded up, so that something is computed.
  EXPECT_EQ(KvBlend{.percent = 15}.Recomputed(400), 60u);
  EXPECT_EQ(KvBlend{.percent = 15}.Recomputed(1), 1u);
  EXPECT_EQ(KvBlend{.percent = 100}.Recomputed(7), 7u);
}

// KV of one policy is never found under another, and exact KV has no policy.
TEST(KvPolicyTest, EveryPolicyHasAProvenanceOfItsOwn) {
  EXPECT_EQ(ProvenanceOf(""), "");
  EXPECT_EQ(ProvenanceOf("exact"), "");
  std::set<BlockId> roots;
  std::vector<std::string> policies = LossyCodecNames();
  policies.push_back("");
  policies.push_back("near-lossless");
  policies.push_back("snapkv:64");
  policies.push_back("snapkv:65");
  policies.push_back("tova:64");
  policies.push_back("blend:15");
  for (const std::string& policy : policies) {
    roots.insert(RootBlockId({.model_fingerprint = 1,
                              .kv_format = "bf16",
                              .tenant_salt = "",
                              .provenance = ProvenanceOf(policy)}));
  }
  EXPECT_EQ(roots.size(), policies.size());
}

TEST(KvPolicyTest, SpansAreAPartOfThePolicy) {
  const std::vector<TokenSpan> spans = {{.begin = 0, .end = 7}, {.begin = 7, .end = 20}};
  const std::string policy = WithSpans("streaming:64+16", spans);
  EXPECT_EQ(policy, "streaming:64+16@0-7,7-20");
  EXPECT_EQ(*ParseKvPolicy(policy), policy);
  const auto eviction = EvictionOf(policy);
  ASSERT_TRUE(eviction.has_value());
  EXPECT_EQ(eviction->spans, spans);
  EXPECT_EQ(eviction->limit(), 80u);
  EXPECT_EQ(eviction->SpanTokens(), 20u);
  EXPECT_EQ(EvictedTokens(policy, 100), 36u);
  EXPECT_THAT(KvMethodsOf(policy), ElementsAre("streaming"));
  EXPECT_NE(ProvenanceOf(policy), ProvenanceOf("streaming:64+16"));
  EXPECT_NE(ProvenanceOf(policy), ProvenanceOf("streaming:64+16@0-7,8-20"));
  for (const char* wrong :
       {"snapkv:64@", "snapkv:64@5", "snapkv:64@5-", "snapkv:64@5-5", "snapkv:64@6-5",
        "snapkv:64@5-9,8-10", "snapkv:64@5-9,", "snapkv:64@-9", "snapkv:64@5-9x", "snapkv:64@ 5-9",
        "snapkv:64@5-99999999999", "snapkv:64@1-2@3-4", "quest:64@1-2", "i8@1-2", "@1-2"}) {
    EXPECT_FALSE(ParseKvPolicy(wrong).ok()) << wrong;
    EXPECT_EQ(EvictionOf(wrong), std::nullopt) << wrong;
  }
}

TEST(KvPolicyTest, SpansLeaveRoom) {
  EXPECT_EQ(EvictionOf("streaming:64")->SpanTokensMax(), 28u);
  EXPECT_EQ(EvictionOf("h2o:65")->SpanTokensMax(), 29u);
  EXPECT_EQ(EvictionOf("h2o:256")->SpanTokensMax(), 124u);
  EXPECT_EQ(EvictionOf("snapkv:256")->SpanTokensMax(), 220u);
  EXPECT_TRUE(EvictionOf("streaming:64@10-38").has_value());
  EXPECT_FALSE(EvictionOf("streaming:64@10-39").has_value());
  EXPECT_FALSE(EvictionOf("snapkv:64@0-4294967295").has_value());
  std::string many = "snapkv:512@0-1";
  for (int i = 1; i < 64; ++i) many += fmt::format(",{}-{}", 2 * i, 2 * i + 1);
  EXPECT_EQ(EvictionOf(many)->spans.size(), kKeepSpansMax);
  EXPECT_FALSE(EvictionOf(many + ",500-501").has_value());
}

TEST(KvPolicyTest, PeopleNamePoliciesWithoutSpans) {
  EXPECT_EQ(*ParseAskedKvPolicy("snapkv:64"), "snapkv:64");
  EXPECT_THAT(Message(ParseAskedKvPolicy("snapkv:64@1-2").status()),
              HasSubstr("\"snapkv:64@1-2\" has spans behind its @"));
}

}  // namespace
}  // namespace penstock
