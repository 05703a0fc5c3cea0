#include "lab/eval/kv_eval_session.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/eval/logit_statistics.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using Logits = std::vector<float>;

constexpr int32_t kTokensMax = 320;

class KvEvalSessionTest : public testing::Test {
 protected:
  KvEvalSessionTest()
      : session_(KvEvalSession::Open(SourceFolder() + "/models/penstock-tiny", 2, 1, kTokensMax)
                     .value()),
        text_(
            TokensOf(session_->tokenizer(), SourceFolder() + "/models/text/held_out.txt").value()) {
  }

  std::span<const uint32_t> Text(int32_t begin, int32_t end) const {
    return std::span(text_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  PageDamage Compress(const std::string& name, int32_t prompt) {
    EXPECT_TRUE(session_->Prefill(0, Text(0, prompt)).ok());
    JudgedCodec codec = ParseJudgedCodec(name).value();
    if (codec.blend) codec.blend->document_tokens = 64;
    const auto done = session_->Compress(codec, 1, prompt);
    EXPECT_TRUE(done.ok()) << done.status();
    return done.value_or(PageDamage());
  }

  // The logits behind the text's token at `position`.
  Logits Step(bool exact, int32_t position) {
    Logits logits;
    EXPECT_TRUE(session_->Step(exact, position, Text(position, position + 1), logits).ok());
    return logits;
  }

  const std::unique_ptr<KvEvalSession> session_;
  const std::vector<uint32_t> text_;
};

TEST_F(KvEvalSessionTest, TokensThatAllFitAreExact) {
  for (const std::string name :
       {"snapkv:300", "h2o:300", "tova:300", "keydiff:300", "keynorm:300", "streaming:300",
        "random:300", "quest:300", "tova:300+16", "h2o:300+16", "streaming:64+256", "oracle:300"}) {
    Compress(name, 64);
    for (int32_t at = 64; at < 160; ++at) {
      ASSERT_EQ(Step(false, at), Step(true, at)) << name << " at " << at;
    }
  }
}

// A compaction leaves what the eviction of a prompt of the same tokens leaves, bit for bit.
TEST_F(KvEvalSessionTest, AnswersAreCompactedWhereTheyAreFull) {
  constexpr int32_t kPrompt = 40, kKept = 64, kFull = 96;
  for (const std::string method : {"streaming", "tova", "keydiff", "keynorm", "random"}) {
    Compress(method + ":64+32", kPrompt);
    for (int32_t at = kPrompt; at < kFull; ++at) {
      ASSERT_EQ(Step(false, at), Step(true, at)) << method << " is not full at " << at;
    }
    std::vector<Logits> compacted;
    for (int32_t at = kFull; at < kFull + kFull - kKept; ++at) compacted.push_back(Step(false, at));
    EXPECT_NE(compacted.front(), Step(true, kFull)) << method;
    Compress(method + ":64", kFull);
    for (size_t i = 0; i < compacted.size(); ++i) {
      ASSERT_EQ(compacted[i], Step(false, kFull + static_cast<int32_t>(i))) << method << " " << i;
    }
    Compress(method + ":64+32", kPrompt);
    for (int32_t at = kPrompt; at <= kFull + kFull - kKept; ++at) compacted[0] = Step(false, at);
    Compress(method + ":64", kFull);
    Logits once;
    for (int32_t at = kFull; at <= kFull + kFull - kKept; ++at) once = Step(false, at);
    EXPECT_NE(compacted[0], once) << method << " is not compacted again";
  }
}

TEST_F(KvEvalSessionTest, NoEvictionIsNearerThanTheOracle) {
  const auto divergence = [&](const std::string& name) {
    Compress(name, 240);
    double sum = 0;
    for (int32_t at = 240; at < 300; ++at) sum += Divergence(Step(true, at), Step(false, at));
    return sum;
  };
  const double oracle = divergence("oracle:64");
  EXPECT_GT(oracle, 0);
  for (const char* name : {"snapkv:64", "h2o:64", "h2o:64+16", "tova:64+16", "streaming:64"}) {
    EXPECT_GT(divergence(name), oracle) << name;
  }
}

// Where nothing is evicted, selected or re-used, a policy leaves what the pages alone leave.
TEST_F(KvEvalSessionTest, PoliciesWorkInPagesOfAFormat) {
  const auto answer = [&](const std::string& name) {
    Compress(name, 240);
    std::vector<Logits> logits;
    for (int32_t at = 240; at < 260; ++at) logits.push_back(Step(false, at));
    return logits;
  };
  const std::vector<Logits> whole = answer("pages:i8");
  EXPECT_NE(whole, answer("snapkv:300"));
  for (const char* policy : {"snapkv:300", "tova:300+16", "quest:300", "blend:100"}) {
    EXPECT_EQ(answer(std::string("pages:i8,") + policy), whole) << policy;
  }
  for (const char* policy :
       {"snapkv:64", "h2o:64", "h2o:64+16", "tova:64+16", "quest:64", "blend:moved"}) {
    EXPECT_EQ(answer(std::string("pages:bf16,") + policy), answer(policy)) << policy;
    EXPECT_NE(answer(std::string("pages:i8,") + policy), answer(policy)) << policy;
  }
}

// The errors are those of the codes, measured elsewhere: with 8 bits 0.006, with 3 bits 0.16.
TEST_F(KvEvalSessionTest, AFormatMayCodeAPromptOnce) {
  const auto error = [](double square, double norm) { return std::sqrt(square / norm); };
  const PageDamage fine = Compress("once:i8", 240), codec = Compress("i8", 240);
  EXPECT_NEAR(error(fine.key_error, fine.key_norm), error(codec.key_error, codec.key_norm), 1e-4);
  EXPECT_NEAR(fine.bits / codec.bits, 1, 0.001) << "a codec has a header";
  const PageDamage plain = Compress("once:k3v3+128", 240);
  const Logits behind_plain = Step(false, 240);
  const PageDamage centred = Compress("once:k3v3c+128", 240);
  EXPECT_NE(Step(false, 240), behind_plain);
  EXPECT_LT(error(centred.key_error, centred.key_norm),
            0.8 * error(plain.key_error, plain.key_norm));
  EXPECT_GT(error(centred.key_error, centred.key_norm), 0.05);
  EXPECT_EQ(centred.value_error, plain.value_error);
  EXPECT_GT(error(plain.value_error, plain.value_norm), 0.05) << "most tokens are in 3 bits";
}

// Four documents, of which the last fills no block, and tokens behind them.
TEST_F(KvEvalSessionTest, ABlendOfAllTokensIsExact) {
  constexpr int32_t kPrompt = 220;
  EXPECT_EQ(Compress("blend:100", kPrompt).key_error, 0);
  for (int32_t at = kPrompt; at < kPrompt + 32; ++at) {
    ASSERT_EQ(Step(false, at), Step(true, at)) << at;
  }
}

TEST_F(KvEvalSessionTest, ABlendIsNearerTheMoreItComputes) {
  double least = 1e9, keys = 1e9;
  for (const char* name : {"blend:naive", "blend:moved", "blend:50", "blend:90"}) {
    const PageDamage damage = Compress(name, 220);
    double divergence = 0;
    for (int32_t at = 220; at < 284; ++at)
      divergence += Divergence(Step(true, at), Step(false, at));
    EXPECT_LT(divergence, least) << name;
    EXPECT_GT(divergence, 0) << name;
    EXPECT_LT(damage.key_error, keys) << name;
    EXPECT_EQ(damage.deviation > 0, ParseJudgedCodec(name)->blend->blend.has_value()) << name;
    least = divergence;
    keys = damage.key_error;
  }
}

}  // namespace
}  // namespace penstock
