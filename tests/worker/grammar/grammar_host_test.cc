#include "worker/grammar/grammar_host.h"

#include <gmock/gmock.h>

#include <cmath>
#include <future>

#include "model/grammar/structured_output.h"
#include "model/sampler/sampler.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

class GrammarHostTest : public ::testing::Test {
 protected:
  GrammarHostTest()
      : tokenizer_(*Tokenizer::Load(ModelFolder())),
        host_({.model = ModelFolder(), .logits_width = tokenizer_->vocab_size(), .waiting_max = 2},
              metrics_) {}

  absl::StatusOr<GrammarHost::Source> Prepare(const std::string& grammar) {
    std::promise<absl::StatusOr<GrammarHost::Source>> done;
    host_.Prepare(
        grammar, {*tokenizer_->eos_id()},
        [&done](absl::StatusOr<GrammarHost::Source> source) { done.set_value(std::move(source)); });
    return done.get_future().get();
  }

  // Greedy over logits that prefer higher ids.
  std::string Generate(Sampler& sampler, size_t tokens_max) {
    std::string text;
    for (size_t i = 0; i < tokens_max; ++i) {
      std::vector<float> logits(tokenizer_->vocab_size());
      for (size_t id = 0; id < logits.size(); ++id) logits[id] = static_cast<float>(id % 97);
      const SampledToken token = sampler.Sample(logits);
      EXPECT_FALSE(std::isnan(token.logprob)) << sampler.failure();
      if (token.id == *tokenizer_->eos_id()) break;
      ids_.push_back(token.id);
      text += tokenizer_->TokenBytes(token.id);
    }
    return text;
  }

  prometheus::ClientMetric Family(const std::string& name) const {
    for (const prometheus::MetricFamily& family : metrics_.Collect()) {
      if (family.name == name) return family.metric.at(0);
    }
    ADD_FAILURE() << name;
    return {};
  }

  SamplingParams Greedy(GrammarHost::Source source) const {
    return {.temperature = 0,
            .stop_token_ids = {*tokenizer_->eos_id()},
            .constraint = std::move(source)};
  }

  MetricsRegistry metrics_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  GrammarHost host_;
  std::vector<uint32_t> ids_;
};

TEST_F(GrammarHostTest, ConstrainsAnswersAndReplaysThem) {
  const auto source = Prepare(*ChoiceGrammar({"rivers", "trees and hills"}));
  ASSERT_TRUE(source.ok()) << source.status();
  Sampler whole(Greedy(*source), 0, {});
  const std::string text = Generate(whole, 40);
  EXPECT_TRUE(text == "rivers" || text == "trees and hills") << text;
  // Another worker replays the first tokens of the answer.
  const std::vector<uint32_t> first(ids_.begin(), ids_.begin() + 2);
  std::string begin;
  for (const uint32_t id : first) begin += tokenizer_->TokenBytes(id);
  Sampler moved(Greedy(*source), 0, {});
  for (const uint32_t id : first) moved.Observe(id);
  EXPECT_EQ(begin + Generate(moved, 40), text);
}

TEST_F(GrammarHostTest, MinTokensGivesWayWhereTheAnswerIsComplete) {
  const auto source = Prepare(*ChoiceGrammar({"ok"}));
  ASSERT_TRUE(source.ok()) << source.status();
  SamplingParams params = Greedy(*source);
  params.min_tokens = 100;
  Sampler sampler(params, 0, {});
  EXPECT_EQ(Generate(sampler, 40), "ok");
}

TEST_F(GrammarHostTest, ReportsAnAnswerThatTheGrammarRefuses) {
  const auto source = Prepare(*ChoiceGrammar({"ok"}));
  ASSERT_TRUE(source.ok()) << source.status();
  Sampler sampler(Greedy(*source), 0, {});
  sampler.Observe(*tokenizer_->FindToken("z"));
  std::vector<float> logits(tokenizer_->vocab_size());
  EXPECT_TRUE(std::isnan(sampler.Sample(logits).logprob));
  EXPECT_EQ(sampler.failure().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(sampler.failure().message()),
              ::testing::HasSubstr("does not allow token"));
}

TEST_F(GrammarHostTest, CompilesEachGrammarOnce) {
  const std::string grammar = *ChoiceGrammar({"a", "b"});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Prepare(grammar).ok());
  EXPECT_EQ(Family("penstock_grammar_compile_seconds").histogram.sample_count, 1u);
}

TEST_F(GrammarHostTest, MeasuresMasksAndThoseThatAreLate) {
  const auto source = Prepare(*ChoiceGrammar({"a", "b"}));
  ASSERT_TRUE(source.ok()) << source.status();
  // Asked for at once, so that most are not ready; on a busy machine it may take more than 100.
  const auto late = [&] { return Family("penstock_grammar_masks_late_total").counter.value; };
  uint64_t asked = 0;
  for (; asked < 100 || (asked < 10'000 && late() == 0); ++asked) {
    EXPECT_TRUE((*source)->Open()->Allowed().ok());
  }
  EXPECT_EQ(Family("penstock_grammar_mask_seconds").histogram.sample_count, asked);
  EXPECT_GT(late(), 0);
}

TEST_F(GrammarHostTest, RefusesUnsatisfiableGrammars) {
  EXPECT_EQ(Prepare("root ::= root \"a\"\n").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GrammarHostTest, BoundsTheGrammarsThatWait) {
  std::vector<std::future<absl::StatusCode>> codes;
  for (int i = 0; i < 50; ++i) {
    auto done = std::make_shared<std::promise<absl::StatusCode>>();
    codes.push_back(done->get_future());
    host_.Prepare(*ChoiceGrammar({fmt::format("choice {}", i)}), {*tokenizer_->eos_id()},
                  [done](absl::StatusOr<GrammarHost::Source> source) {
                    done->set_value(source.status().code());
                  });
  }
  int refused = 0;
  for (auto& code : codes) {
    const absl::StatusCode got = code.get();
    refused += got == absl::StatusCode::kResourceExhausted ? 1 : 0;
    EXPECT_TRUE(got == absl::StatusCode::kOk || got == absl::StatusCode::kResourceExhausted)
        << static_cast<int>(got);
  }
  // The first compilation reads the tokenizer, which takes longer than 50 calls.
  EXPECT_GT(refused, 30);
}

TEST_F(GrammarHostTest, EndsWithWorkThatWaits) {
  const auto source = Prepare(*ChoiceGrammar({"ok"}));
  ASSERT_TRUE(source.ok());
  host_.Stop();
  EXPECT_TRUE(Prepare(*ChoiceGrammar({"ok"})).ok());  // compiled already
  EXPECT_EQ(Prepare(*ChoiceGrammar({"other"})).status().code(), absl::StatusCode::kUnavailable);
}

TEST(GrammarHost, NeedsATokenizer) {
  MetricsRegistry metrics;
  GrammarHost host({.model = "/nowhere", .logits_width = 8}, metrics);
  std::promise<absl::StatusCode> done;
  host.Prepare("root ::= \"a\"\n", {1}, [&done](absl::StatusOr<GrammarHost::Source> source) {
    done.set_value(source.status().code());
  });
  EXPECT_EQ(done.get_future().get(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace penstock
