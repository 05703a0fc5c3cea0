#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/anthropic/error.h"
#include "router/anthropic/request.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

Json Minimal() {
  return Json::parse(R"({"model": "tiny", "max_tokens": 8,
                         "messages": [{"role": "user", "content": "Hello"}]})");
}

absl::StatusOr<MessageRequest> With(const std::string& name, const std::string& value) {
  Json body = Minimal();
  body[name] = Json::parse(value);
  return ParseMessageRequest(body, body.dump());
}

TEST(MessageRequest, HasSystemAndMessagesInOrder) {
  Json body = Minimal();
  body["system"] = Json::parse(R"([{"type": "text", "text": "Be brief."},
                                   {"type": "text", "text": " Be kind."}])");
  body["messages"] = Json::parse(R"([{"role": "user", "content": "a"},
                                     {"role": "user", "content": [{"type": "text", "text": "b"}]},
                                     {"role": "assistant", "content": "c"},
                                     {"role": "user", "content": "d"}])");
  const auto request = ParseMessageRequest(body, body.dump());
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  ASSERT_EQ(chat.messages_size(), 4);
  EXPECT_EQ(chat.messages(0).role(), "system");
  EXPECT_EQ(chat.messages(0).content_size(), 2);
  std::string joined;
  for (const auto& part : chat.messages(1).content()) joined += part.text();
  EXPECT_EQ(joined, "a\nb");
  EXPECT_EQ(chat.messages(2).role(), "assistant");
  EXPECT_EQ(chat.messages(3).content(0).text(), "d");
  EXPECT_EQ(request->generate.stop().max_tokens(), 8u);
  EXPECT_FALSE(request->stream);
  EXPECT_FALSE(request->has_breakpoints);
}

TEST(MessageRequest, HasBreakpointsWithTheirLifetimes) {
  Json body = Minimal();
  body["system"] = Json::parse(
      R"([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}])");
  auto request = ParseMessageRequest(body, body.dump());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->generate.chat().messages(0).content(0).breakpoint().ttl().seconds(), 3600);
  EXPECT_EQ(request->ttl_s, 3600);
  body["cache_control"] = Json::parse(R"({"type": "ephemeral"})");
  request = ParseMessageRequest(body, body.dump());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->generate.cache().prompt().ttl().seconds(), 300);
  EXPECT_TRUE(request->has_breakpoints);
  EXPECT_EQ(request->ttl_s, std::nullopt);
}

TEST(MessageRequest, HasToolsAndTheChoice) {
  const std::string text =
      R"({"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}],
          "tools": [{"name": "f", "description": "d", "strict": true, "cache_control": {"type": "ephemeral"},
                     "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}],
          "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "thinking": {"type": "adaptive"}})";
  const auto request = ParseMessageRequest(*ParseJson(text), text);
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  ASSERT_EQ(chat.tools_size(), 1);
  EXPECT_EQ(chat.tools(0).name(), "f");
  EXPECT_EQ(chat.tools(0).parameters(), R"({"type": "object", "properties": {"z": {}, "a": {}}})");
  EXPECT_TRUE(chat.tools(0).strict());
  EXPECT_TRUE(chat.tools(0).has_breakpoint());
  EXPECT_EQ(chat.tool_choice().mode(), v1::ToolChoice::REQUIRED);
  EXPECT_TRUE(chat.tool_choice().single());
  EXPECT_EQ(chat.reasoning_effort(), "medium");
  const auto named = With("tool_choice", R"({"type": "tool", "name": "f"})");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->generate.chat().tool_choice().names(0), "f");
  EXPECT_TRUE(named->generate.chat().tool_choice().single());
}

TEST(MessageRequest, HasCallsResultsAndThinking) {
  const std::string text = R"({"model": "tiny", "max_tokens": 8, "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"z": 1, "a": [2]}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "done"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true},
        {"type": "text", "text": "Go on."}]}]})";
  const auto request = ParseMessageRequest(*ParseJson(text), text);
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  ASSERT_EQ(chat.messages_size(), 5);
  EXPECT_EQ(chat.messages(1).reasoning(), "Hm.");
  EXPECT_EQ(chat.messages(1).content(0).text(), "I look.");
  EXPECT_EQ(chat.messages(1).tool_calls(0).id(), "toolu_1");
  EXPECT_EQ(chat.messages(1).tool_calls(0).arguments(), R"({"z": 1, "a": [2]})");
  EXPECT_EQ(chat.messages(2).role(), "tool");
  EXPECT_EQ(chat.messages(2).tool_call_id(), "toolu_1");
  EXPECT_EQ(chat.messages(2).content(0).text(), "done");
  EXPECT_EQ(chat.messages(3).content(0).text(), "error");
  EXPECT_EQ(chat.messages(4).role(), "user");
  EXPECT_EQ(chat.messages(4).content(0).text(), "Go on.");
}

TEST(MessageRequest, IgnoresWhatCannotChangeTheAnswer) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"metadata", R"({"user_id": "u"})"},
                                          {"service_tier", R"("auto")"},
                                          {"tools", "[]"},
                                          {"tool_choice", R"({"type": "none"})"},
                                          {"container", "null"}}) {
    EXPECT_TRUE(With(name, value).ok()) << name;
  }
}

struct BadMessageField {
  std::string name;
  std::string value;
  std::string message;
};

class RefusedMessageField : public ::testing::TestWithParam<BadMessageField> {};

TEST_P(RefusedMessageField, IsNamed) {
  const auto request = With(GetParam().name, GetParam().value);
  ASSERT_FALSE(request.ok());
  const HttpResponse response = MessageErrorResponse(request.status(), "req-1");
  EXPECT_EQ(response.status, 400);
  const Json body = Json::parse(response.body);
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["request_id"], "req-1");
  EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedMessageField,
    ::testing::Values(
        BadMessageField{"tools", R"([{"name": "f"}])", "tools[0].input_schema is needed"},
        BadMessageField{"tools", R"([{"type": "web_search_20250305", "name": "web_search"}])",
                        "tools[0].type is `web_search_20250305`; this server runs no tools"},
        BadMessageField{"tool_choice", R"({"type": "some"})", "must be auto, any, tool or none"},
        BadMessageField{"tool_choice", R"({"type": "tool"})", "tool_choice.name is needed"},
        BadMessageField{"thinking", R"({"type": "deep"})", "must be enabled, adaptive or disabled"},
        BadMessageField{"output_config", R"({"format": {"type": "json_schema"}})",
                        "output_config.format.schema is needed"},
        BadMessageField{"output_config", R"({"effort": "low"})",
                        "output_config.effort is not supported"},
        BadMessageField{"thread", R"("t")", "thread is not supported by this server; send"},
        BadMessageField{"frequency_penalty", "1", "frequency_penalty is not supported"},
        BadMessageField{"max_tokens", "0", "max_tokens is 0"},
        BadMessageField{"max_tokens", "null", "max_tokens is needed"},
        BadMessageField{"model", R"("")", "model is needed"},
        BadMessageField{"stop_sequences", "[1]", "stop_sequences[0] must be a string"},
        BadMessageField{"system", "7", "system must be a string or a list of blocks"},
        BadMessageField{"messages", "[]", "messages has 0 messages"},
        BadMessageField{"messages", R"([{"role": "tool", "content": "x"}])",
                        "messages[0].role must be \"user\" or \"assistant\""},
        BadMessageField{"messages", R"([{"role": "user"}])", "messages[0].content is needed"},
        BadMessageField{"messages", R"([{"role": "user", "content": [{"type": "image"}]}])",
                        "messages[0].content[0].type is `image`; only text is supported"},
        BadMessageField{
            "messages",
            R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}])",
            "messages end with a message of the assistant"},
        BadMessageField{
            "messages",
            R"([{"role": "user", "content": [
                             {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
                             {"type": "text", "text": "y",
                              "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}])",
            "messages[0].content[1].cache_control.ttl is 1h after a breakpoint of 5m"}));

TEST(CountRequest, HasTheSameConversationAndNoAnswer) {
  Json body = Minimal();
  body.erase("max_tokens");
  body["system"] = "Be brief.";
  const auto request = ParseCountRequest(body, body.dump());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->chat().messages_size(), 2);
  EXPECT_FALSE(ParseCountRequest(Minimal(), Minimal().dump()).ok()) << "max_tokens is for answers";
}

}  // namespace
}  // namespace penstock
