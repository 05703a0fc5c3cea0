#include "router/openai/tool_fields.h"

#include <gmock/gmock.h>

#include "router/openai/message_json.h"
#include "router/openai/request.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTools[] =
    R"("tools": [{"type": "function", "function": {"name": "get_weather", "description": "d", "strict": true,
         "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}}}},
       {"function": {"parameters": {}, "name": "stop"}, "type": "function"}])";
constexpr char kMessages[] = R"("messages": [{"role": "user", "content": "Hi"}])";

absl::StatusOr<v1::GenerateRequest> Parse(const std::string& fields,
                                          const std::string& messages = kMessages) {
  const std::string text = "{" + messages + ", " + fields + "}";
  const auto body = ParseJson(text);
  EXPECT_TRUE(body.ok()) << body.status() << text;
  ASSIGN_OR_RETURN(const OpenAiRequest request, ParseChatRequest(*body, text));
  return request.prompts.front();
}

v1::ToolChoice ChoiceOf(const std::string& fields) {
  const auto request = Parse(fields);
  EXPECT_TRUE(request.ok()) << request.status();
  return request->chat().tool_choice();
}

TEST(ToolFields, HaveToolsWithTheirSchemasAsWritten) {
  const auto request = Parse(kTools);
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->chat().tools_size(), 2);
  const v1::Tool& tool = request->chat().tools(0);
  EXPECT_EQ(tool.name(), "get_weather");
  EXPECT_EQ(tool.description(), "d");
  EXPECT_TRUE(tool.strict());
  EXPECT_EQ(tool.parameters(),
            R"({"type": "object", "properties": {"z": {"type": "string"}, "a": {}}})");
  EXPECT_EQ(request->chat().tools(1).name(), "stop");
  EXPECT_EQ(request->chat().tools(1).parameters(), "");
}

TEST(ToolFields, HaveTheChoice) {
  const std::string tools = std::string(kTools) + ", ";
  EXPECT_EQ(ChoiceOf(kTools).mode(), v1::ToolChoice::AUTO);
  EXPECT_EQ(ChoiceOf(tools + R"("tool_choice": "none")").mode(), v1::ToolChoice::NONE);
  EXPECT_EQ(ChoiceOf(tools + R"("tool_choice": "required")").mode(), v1::ToolChoice::REQUIRED);
  EXPECT_TRUE(ChoiceOf(tools + R"("parallel_tool_calls": false)").single());
  const auto named =
      ChoiceOf(tools + R"("tool_choice": {"type": "function", "function": {"name": "stop"}})");
  EXPECT_EQ(named.mode(), v1::ToolChoice::REQUIRED);
  EXPECT_THAT(named.names(), ElementsAre("stop"));
  EXPECT_TRUE(named.single());
  const auto allowed = ChoiceOf(tools + R"("tool_choice": {"type": "allowed_tools", "allowed_tools":
      {"mode": "auto", "tools": [{"type": "function", "function": {"name": "stop"}}]}})");
  EXPECT_EQ(allowed.mode(), v1::ToolChoice::AUTO);
  EXPECT_THAT(allowed.names(), ElementsAre("stop"));
}

TEST(ToolFields, AreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("tools": 5)", "tools must be a list"},
      {R"("tools": [5])", "tools[0] must be an object"},
      {R"("tools": [{"type": "custom"}])", "tools[0].type is `custom`; only function"},
      {R"("tools": [{"type": "function"}])", "tools[0].function is needed"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name is needed"},
      {R"("tool_choice": "some")", "tool_choice is `some`; it must be none, auto, required"},
      {R"("tool_choice": {"type": "function"})", "tool_choice.function is needed"},
      {R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}})",
       "tool_choice.allowed_tools.mode must be auto or required"},
      {R"("chat_template_kwargs": {"a": [1]})", "chat_template_kwargs.a must be a text"},
      {R"("include_reasoning": 5)", "include_reasoning must be true or false"},
      {R"("functions": [{"name": "f"}])", "functions is not supported"}};
  for (const auto& [fields, message] : cases) {
    EXPECT_THAT(Message(Parse(fields).status()), HasSubstr(message)) << fields;
  }
}

TEST(ToolFields, ReadTheMessagesOfATurnWithCalls) {
  const auto request = Parse(R"("reasoning_effort": "low", "include_reasoning": false)",
                             R"("messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]}])");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::Message& answer = request->chat().messages(1);
  EXPECT_TRUE(answer.content().empty());
  EXPECT_EQ(answer.reasoning(), "r");
  ASSERT_EQ(answer.tool_calls_size(), 1);
  EXPECT_EQ(answer.tool_calls(0).id(), "c1");
  EXPECT_EQ(answer.tool_calls(0).name(), "f");
  EXPECT_EQ(answer.tool_calls(0).arguments(), R"({"a": 1})");
  EXPECT_EQ(request->chat().messages(2).tool_call_id(), "c1");
  EXPECT_EQ(request->chat().reasoning_effort(), "low");
  EXPECT_EQ(request->reasoning(), v1::REASONING_OMITTED);
  EXPECT_THAT(Message(Parse(R"("n": 1)", R"("messages": [{"role": "assistant"}])").status()),
              HasSubstr("messages[0].content is needed"));
  EXPECT_THAT(
      Message(Parse(R"("n": 1)", R"("messages": [{"role": "tool", "content": "x"}])").status()),
      HasSubstr("messages[0].tool_call_id is needed"));
}

TEST(MessageJson, GivesIdAndNameOnceAndBeforeArguments) {
  v1::Chunk chunk;
  EXPECT_THAT(DeltasOf(chunk), ElementsAre(R"({"content":""})"));
  chunk.set_reasoning("why");
  chunk.set_text("ok");
  v1::ToolCallPiece& piece = *chunk.add_tool_calls();
  piece.set_index(1);
  piece.set_id("c");
  piece.set_name("f");
  piece.set_arguments(R"({"a")");
  EXPECT_THAT(
      DeltasOf(chunk),
      ElementsAre(
          R"({"reasoning_content":"why","reasoning":"why","content":"ok"})",
          R"({"tool_calls":[{"index":1,"id":"c","type":"function","function":{"name":"f","arguments":""}}]})",
          R"({"tool_calls":[{"index":1,"function":{"arguments":"{\"a\""}}]})"));
}

TEST(MessageJson, HasNoContentBesideCallsAlone) {
  v1::Choice choice;
  v1::ToolCall& call = *choice.add_tool_calls();
  call.set_id("c");
  call.set_name("f");
  call.set_arguments("{}");
  std::string out;
  AppendMessage(choice, out);
  EXPECT_EQ(
      out,
      R"("message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}],"refusal":null})");
}

}  // namespace
}  // namespace penstock
