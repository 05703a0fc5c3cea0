// Evictions and selections forget what a second implementation of them, over transformers, forgets
// (tests/golden/make_recall.py).

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/eval/kv_eval_session.h"
#include "lab/eval/logit_statistics.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

// Both round: this one's keys and values are bf16, and a greedy answer may hang on a bit.
constexpr double kRecallTolerance = 0.02;

class RecallTest : public testing::Test {
 protected:
  RecallTest()
      : golden_(nlohmann::json::parse(std::ifstream(SourceFolder() + "/tests/golden/recall.json"))),
        session_(KvEvalSession::Open(SourceFolder() + "/models/penstock-tiny", 2, 1, 700).value()),
        text_(
            TokensOf(session_->tokenizer(), SourceFolder() + "/models/text/held_out.txt").value()) {
  }

  std::vector<uint32_t> Encode(const std::string& text) const {
    return session_->tokenizer().Encode(text, {.add_special_tokens = false}).value();
  }

  std::vector<uint32_t> PromptOf(const nlohmann::json& line) const {
    std::vector<uint32_t> prompt = {*session_->tokenizer().bos_id()};
    const auto add = [&prompt](std::span<const uint32_t> tokens) {
      prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    };
    const auto passage = [&](const char* name) {
      return std::span(text_).subspan(line[name][0].get<size_t>(), line[name][1].get<size_t>());
    };
    const std::vector<uint32_t> statement = Encode(" The pass key is ");
    add(passage("before"));
    add(statement);
    add(Encode(line["key"]));
    add(Encode(". Remember it."));
    add(passage("between"));
    add(Encode(" What is the pass key?"));
    add(statement);
    return prompt;
  }

  // True if the greedy answer behind the prompt is `key`. The pages hold the exact KV.
  bool Tells(const std::vector<uint32_t>& prompt, const std::string& policy,
             const std::vector<uint32_t>& key) {
    const auto size = static_cast<int32_t>(prompt.size());
    EXPECT_TRUE(session_->Compress(ParseJudgedCodec(policy).value(), 1, size).ok());
    std::vector<float> logits;
    uint32_t token = prompt.back();
    for (size_t i = 0; i < key.size(); ++i) {
      const bool exact = i == 0;  // The first token comes from the prefill worker.
      const auto position = size - 1 + static_cast<int32_t>(i);
      EXPECT_TRUE(session_->Step(exact, position, std::span(&token, 1), logits).ok());
      if (Best(logits) != key[i]) return false;
      token = key[i];
    }
    return true;
  }

  const nlohmann::json golden_;
  const std::unique_ptr<KvEvalSession> session_;
  const std::vector<uint32_t> text_;
};

TEST_F(RecallTest, IsThatOfAnotherImplementation) {
  ASSERT_EQ(text_.size(), golden_["text_tokens"].get<size_t>());
  const auto policies = golden_["policies"].get<std::vector<std::string>>();
  std::vector<int> ours(policies.size()), theirs(policies.size()), different(policies.size());
  for (const nlohmann::json& line : golden_["prompts"]) {
    const std::vector<uint32_t> prompt = PromptOf(line), key = Encode(line["key"]);
    ASSERT_EQ(prompt.size(), line["tokens"].get<size_t>());
    ASSERT_TRUE(session_->Prefill(0, prompt).ok());
    for (size_t p = 0; p < policies.size(); ++p) {
      const bool told = Tells(prompt, policies[p], key), expected = line["told"][p];
      ours[p] += told ? 1 : 0;
      theirs[p] += expected ? 1 : 0;
      different[p] += told != expected ? 1 : 0;
    }
  }
  const auto prompts = static_cast<double>(golden_["prompts"].size());
  for (size_t p = 0; p < policies.size(); ++p) {
    EXPECT_LE(std::abs(ours[p] - theirs[p]), kRecallTolerance * prompts) << policies[p];
    EXPECT_LE(different[p], 2 * kRecallTolerance * prompts) << policies[p];
  }
}

}  // namespace
}  // namespace penstock
