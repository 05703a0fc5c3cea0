#include <gtest/gtest.h>

#include "lab/load/openai_event.h"

namespace penstock {
namespace {

TEST(OpenAiEventTest, CountsTokensWhereTheyAreListed) {
  const auto event = ParseOpenAiEvent(
      R"({"choices":[{"index":0,"text":"","token_ids":[5,6,7],"finish_reason":"length"}],"usage":null})");
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->tokens, 3u);  // a token's text may come with a later one
  EXPECT_FALSE(event->has_text);
  EXPECT_EQ(event->finish_reason, "length");
  EXPECT_FALSE(event->usage.has_value());
}

TEST(OpenAiEventTest, SeesTextOfEveryDialect) {
  for (const char* choice :
       {R"({"text":"a"})", R"({"delta":{"content":"a"}})", R"({"delta":{"reasoning_content":"a"}})",
        R"({"delta":{"reasoning":"a"}})"}) {
    const auto event = ParseOpenAiEvent(fmt::format(R"({{"choices":[{}]}})", choice));
    ASSERT_TRUE(event.ok()) << choice;
    EXPECT_TRUE(event->has_text) << choice;
    EXPECT_FALSE(event->tokens.has_value());
  }
  const auto role =
      ParseOpenAiEvent(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})");
  EXPECT_FALSE(role->has_text);
}

TEST(OpenAiEventTest, ReadsUsageWithAndWithoutDetails) {
  const auto full = ParseOpenAiEvent(
      R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8}}})");
  ASSERT_TRUE(full.ok() && full->usage);
  EXPECT_EQ(full->usage->prompt_tokens, 9u);
  EXPECT_EQ(full->usage->cached_tokens, 8u);
  EXPECT_EQ(full->usage->output_tokens, 4u);
  const auto plain =
      ParseOpenAiEvent(R"({"usage":{"prompt_tokens":9,"prompt_tokens_details":null}})");
  ASSERT_TRUE(plain.ok() && plain->usage);
  EXPECT_EQ(plain->usage->cached_tokens, 0u);
}

TEST(OpenAiEventTest, NamesErrors) {
  const auto event =
      ParseOpenAiEvent(R"({"error":{"message":"no room","type":"t","code":"overloaded"}})");
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->error, "stream overloaded");
  EXPECT_EQ(event->error_message, "no room");
  EXPECT_EQ(ParseOpenAiError(400, R"({"error":{"type":"BadRequest","code":null}})").kind,
            "400 BadRequest");
  EXPECT_EQ(ParseOpenAiError(429, R"({"error":{"code":429}})").kind, "429 429");
  EXPECT_EQ(ParseOpenAiError(502, "<html>Bad gateway</html>").kind, "502");
  EXPECT_EQ(ParseOpenAiError(500, R"({"error":"text"})").kind, "500");
}

TEST(OpenAiEventTest, RefusesWhatIsNone) {
  for (const char* data : {"", "{", "[1]", "\"text\"", "{\"choices\":[}", "[DONE"}) {
    EXPECT_FALSE(ParseOpenAiEvent(data).ok()) << data;
  }
  EXPECT_TRUE(ParseOpenAiEvent("[DONE]")->done);
}

}  // namespace
}  // namespace penstock
