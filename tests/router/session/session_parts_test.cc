// Tool calls and reasoning in the chunks of a choice.

#include <gmock/gmock.h>

#include <random>

#include "lab/fake/test_model.h"
#include "router/admission/answer_backlog.h"
#include "router/session/call_id.h"
#include "router/session/choice_writer.h"
#include "tests/router/session/session_fixture.h"

namespace penstock {
namespace {

constexpr char kText[] =
    "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
    "\"END\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";

class ChoicePartsTest : public ::testing::Test {
 protected:
  ChoicePartsTest() {
    spec_.parts = {.calls = CallNotationOf("hermes"),
                   .tools = {{.name = "f"}, {.name = "g"}},
                   .reasoning = FindReasoningNotation("</think>")};
    spec_.stop = {"END"};
    spec_.sampling.set_max_tokens(1000);
  }

  // The whole answer of these tokens, which are bytes, and whose chunks are taken after each of
  // `sizes` tokens.
  v1::Choice AnswerOf(const std::string& text, bool stops, const std::vector<size_t>& sizes = {}) {
    const ServedModel model = MakeTestModel();
    ChoiceWriter writer({.tokenizer = *model.tokenizer, .spec = spec_, .call_ids = 5},
                        *StopMatcher::Create(spec_.stop));
    AnswerBacklog backlog;
    AnswerCollector collector(1);
    size_t next = 0, left = sizes.empty() ? 1 : sizes[0];
    const auto take = [&] {
      std::optional<v1::Chunk> chunk = writer.TakeChunk();
      if (!chunk) return;
      v1::GenerateResponse response;
      *response.mutable_chunk() = *std::move(chunk);
      backlog.Add(std::move(response));
    };
    for (size_t i = 0; i < text.size() && !writer.ended(); ++i) {
      v1::TokenOut token;
      token.set_token(static_cast<unsigned char>(text[i]));
      const bool last = !stops && i + 1 == text.size();
      if (last) token.set_finish(v1::TokenOut::LENGTH);
      writer.Add(token);
      if (--left > 0) continue;
      take();
      next = sizes.empty() ? 0 : (next + 1) % sizes.size();
      left = sizes.empty() ? 1 : sizes[next];
      if (next == 0) {
        while (auto response = backlog.Take()) collector.Add(*std::move(response));
      }
    }
    if (!writer.ended()) {
      v1::TokenOut stop;
      stop.set_token(kTestImEnd);
      stop.set_finish(v1::TokenOut::STOP);
      writer.Add(stop);
    }
    take();
    while (auto response = backlog.Take()) collector.Add(*std::move(response));
    v1::GenerateResponse ending;
    *ending.mutable_final() = writer.ending();
    collector.Add(std::move(ending));
    reasoning_tokens_ = writer.reasoning_tokens();
    return collector.Take().choices(0);
  }

  AnswerSpec spec_;
  uint64_t reasoning_tokens_ = 0;
};

TEST_F(ChoicePartsTest, AreSplitAndCalled) {
  const v1::Choice answer = AnswerOf(kText, /*stops=*/true);
  EXPECT_EQ(answer.reasoning(), "Hm.");
  EXPECT_EQ(answer.text(), "Let me see.\n");
  ASSERT_EQ(answer.tool_calls_size(), 2);
  EXPECT_EQ(answer.tool_calls(0).name(), "f");
  EXPECT_EQ(answer.tool_calls(0).arguments(), R"({"a": "END"})")
      << "a stop string ends only content";
  EXPECT_EQ(answer.tool_calls(1).arguments(), "{}");
  EXPECT_NE(answer.tool_calls(0).id(), answer.tool_calls(1).id());
  EXPECT_EQ(answer.finish_reason(), v1::TOOL_CALLS);
  EXPECT_EQ(reasoning_tokens_, std::string("\nHm.\n</think>").size());
}

TEST_F(ChoicePartsTest, AreTheSameHoweverTokensComeTogether) {
  const std::string whole = AnswerOf(kText, true).SerializeAsString();
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    std::vector<size_t> sizes;
    for (int j = 0; j < 7; ++j) sizes.push_back(1 + random() % 40);
    ASSERT_EQ(AnswerOf(kText, true, sizes).SerializeAsString(), whole);
  }
}

TEST_F(ChoicePartsTest, KeepWhatTheLengthHasCut) {
  const std::string text = std::string(kText).substr(0, std::string(kText).find("END") + 1);
  const v1::Choice answer = AnswerOf(text, /*stops=*/false);
  ASSERT_EQ(answer.tool_calls_size(), 1);
  EXPECT_EQ(answer.tool_calls(0).arguments(), R"({"a": "E)");
  EXPECT_EQ(answer.finish_reason(), v1::LENGTH);
}

TEST_F(ChoicePartsTest, EndAtAStopStringInContent) {
  const v1::Choice answer = AnswerOf("<think>END</think>ok END <tool_call>", true);
  EXPECT_EQ(answer.reasoning(), "END");
  EXPECT_EQ(answer.text(), "ok ");
  EXPECT_EQ(answer.finish_reason(), v1::STOP);
  EXPECT_EQ(answer.matched_stop_string(), "END");
}

TEST_F(ChoicePartsTest, LeaveReasoningOutOnRequest) {
  spec_.reasoning = v1::REASONING_OMITTED;
  const v1::Choice answer = AnswerOf(kText, true);
  EXPECT_EQ(answer.reasoning(), "");
  EXPECT_EQ(answer.text(), "Let me see.\n");
}

// Keeps what the client gets.
class PartsWorld : public SessionWorld {
 public:
  void Send(v1::GenerateResponse response) override {
    collector.Add(response);
    SessionWorld::Send(std::move(response));
  }
  AnswerCollector collector{1};
};

// The decode worker fails behind each token: in reasoning, in the marker of a call, in its name and
// in its arguments.
TEST_F(ChoicePartsTest, GoOnExactlyWhereAWorkerFailed) {
  const std::string text = kText;
  const v1::Choice whole = AnswerOf(text, /*stops=*/true);
  const ServedModel model = MakeTestModel();
  const TimePoint now{std::chrono::seconds(1000)};
  for (size_t failure = 1; failure < text.size(); ++failure) {
    PartsWorld world;
    SessionRequest request{.request_id = "r", .prompt = kSessionPrompt, .answer = spec_};
    request.answer.sampling.set_choices(1);
    request.call_ids = 5;
    Session session(std::move(request), *model.tokenizer, *StopMatcher::Create(spec_.stop), {},
                    world);
    session.Start(now);
    for (size_t i = 0; i <= text.size(); ++i) {
      if (i == failure) {
        const Opened& first = world.opened.front();
        session.OnEnded(first.attempt, Side::kDecode, Unavailable("Socket closed"), now);
        ASSERT_EQ(world.opened.size(), 2u);
        ASSERT_EQ(world.opened.back().decode.tokens_size(), kSessionPrompt.size() + failure);
      }
      v1::TokenOut token;
      token.set_position(static_cast<uint32_t>(i));
      token.set_token(i < text.size() ? static_cast<unsigned char>(text[i]) : kTestImEnd);
      if (i == text.size()) token.set_finish(v1::TokenOut::STOP);
      const Opened& present = world.opened.back();
      if (i == 0 || i == failure) {
        v1::PrefillEvent event;
        *event.mutable_first()->add_tokens() = token;
        session.OnPrefillEvent(present.attempt, event, now);
      } else {
        session.OnDecodeToken(present.attempt, token, now);
      }
    }
    ASSERT_TRUE(world.finished && world.finished->ok());
    ASSERT_EQ(world.collector.Take().choices(0).SerializeAsString(), whole.SerializeAsString())
        << failure;
    ASSERT_EQ(world.endings[0].usage().reasoning_tokens(), reasoning_tokens_);
  }
}

TEST(CallId, IsOfTheLengthThatTemplatesTake) {
  const CallKey key{.seed = 1, .choice = 2, .call = 3};
  EXPECT_THAT(MakeCallId(key, 0), ::testing::MatchesRegex("call_[0-9A-Za-z]{24}"));
  EXPECT_THAT(MakeCallId(key, 9), ::testing::MatchesRegex("[0-9A-Za-z]{9}"));
  EXPECT_EQ(MakeCallId(key, 0), MakeCallId(key, 0));
  EXPECT_NE(MakeCallId(key, 0), MakeCallId({.seed = 1, .choice = 3, .call = 2}, 0));
}

}  // namespace
}  // namespace penstock
