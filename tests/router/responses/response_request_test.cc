#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/openai/error.h"
#include "router/request/error_detail.h"
#include "router/responses/request.h"
#include "router/responses/response_json.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ResponseRequest> ParseText(const std::string& text) {
  ASSIGN_OR_RETURN(const Json body, ParseJson(text));
  return ParseResponseRequest(body, text);
}

absl::StatusOr<ResponseRequest> With(const std::string& fields) {
  return ParseText(R"({"model": "tiny", "input": "Hello", )" + fields + "}");
}

// Of a request whose input is the list `items`.
absl::StatusOr<ResponseRequest> OfItems(const std::string& items) {
  return ParseText(R"({"input": [)" + items + "]}");
}

std::vector<std::string> RolesOf(const v1::ChatPrompt& chat) {
  std::vector<std::string> roles;
  for (const v1::Message& message : chat.messages()) roles.push_back(message.role());
  return roles;
}

TEST(ResponseRequest, HasInstructionsAndAText) {
  const auto request = With(R"("instructions": "Be brief.", "stream": true)");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  EXPECT_THAT(RolesOf(chat), ElementsAre("system", "user"));
  EXPECT_EQ(chat.messages(0).content(0).text(), "Be brief.");
  EXPECT_EQ(chat.messages(1).content(0).text(), "Hello");
  EXPECT_EQ(request->generate.model(), "tiny");
  EXPECT_TRUE(request->stream);
}

TEST(ResponseRequest, EmptyInstructionsAreNone) {
  const auto request = With(R"("instructions": "")");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(RolesOf(request->generate.chat()), ElementsAre("user"));
}

TEST(ResponseRequest, HasMessagesOfEveryRole) {
  const auto request = OfItems(R"(
      {"role": "developer", "content": "d"},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                      {"type": "input_text", "text": "b"}]},
      {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
      {"role": "assistant", "content": "e"},
      {"role": "user", "content": "f"})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  EXPECT_THAT(RolesOf(chat), ElementsAre("system", "user", "assistant", "assistant", "user"));
  EXPECT_EQ(chat.messages(1).content_size(), 2);
  EXPECT_EQ(chat.messages(2).content(0).text(), "c");
}

TEST(ResponseRequest, JoinsTheItemsOfATurn) {
  const auto request = OfItems(R"(
      {"role": "user", "content": "Look."},
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "no"}],
       "content": [{"type": "reasoning_text", "text": "Hm"}, {"type": "reasoning_text", "text": "."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{\"z\": 1, \"a\": 2}"},
      {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "call_1", "output": "one"},
      {"type": "function_call_output", "call_id": "call_2",
       "output": [{"type": "input_text", "text": "two"}]},
      {"type": "function_call", "call_id": "call_3", "name": "f", "arguments": "{}"},
      {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Then"}]},
      {"role": "assistant", "content": "Done."})");
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  EXPECT_THAT(RolesOf(chat),
              ElementsAre("user", "assistant", "tool", "tool", "assistant", "assistant"));
  const v1::Message& turn = chat.messages(1);
  EXPECT_EQ(turn.reasoning(), "Hm.");
  EXPECT_EQ(turn.content(0).text(), "I look.");
  ASSERT_EQ(turn.tool_calls_size(), 2);
  EXPECT_EQ(turn.tool_calls(0).id(), "call_1");
  EXPECT_EQ(turn.tool_calls(0).arguments(), R"({"z": 1, "a": 2})");
  EXPECT_EQ(turn.tool_calls(1).name(), "g");
  EXPECT_EQ(chat.messages(3).tool_call_id(), "call_2");
  EXPECT_EQ(chat.messages(3).content(0).text(), "two");
  EXPECT_EQ(chat.messages(4).tool_calls(0).id(), "call_3");
  EXPECT_EQ(chat.messages(5).reasoning(), "Then") << "it comes after a call, so it begins a turn";
  EXPECT_EQ(chat.messages(5).content(0).text(), "Done.");
}

TEST(ResponseRequest, NamesThePlaceInTheInput) {
  const auto request = OfItems(R"(
      {"role": "user", "content": "Look."},
      {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]},
      {"type": "function_call", "call_id": "call_1", "name": "f"},
      {"type": "function_call_output", "call_id": "call_1", "output": "one"})");
  ASSERT_TRUE(request.ok()) << request.status();
  const std::pair<std::string, std::string> fields[] = {
      {"chat.messages[1].tool_calls[0].arguments", "input[2].arguments"},
      {"chat.messages[2].role", "input[3].role"},
      {"chat.messages", "input"},
      {"chat", "input"},
      {"chat.tools[0].name", "tools[0].name"},
      {"chat.reasoning_effort", "reasoning.effort"},
      {"stop.max_tokens", "max_output_tokens"},
      {"sampling.top_p", "top_p"}};
  for (const auto& [field, shown] : fields) {
    const absl::Status named = RenameFields(BadField(field, "is odd"), request->prompt_names);
    const absl::Status status = RenameFields(named, request->names);
    const Json error = Json::parse(ErrorResponse(status).body)["error"];
    EXPECT_EQ(error["param"], shown);
    EXPECT_EQ(error["message"], shown + " is odd");
  }
  const auto format = With(R"("text": {"format": {"type": "json_object"}})");
  ASSERT_TRUE(format.ok()) << format.status();
  EXPECT_EQ(DetailOf(RenameFields(BadField("structured", "is odd"), format->names)).field,
            "text.format");
}

TEST(ResponseRequest, HasFlatToolsAndTheChoice) {
  constexpr char kTools[] = R"("tools": [
      {"type": "function", "name": "f", "description": "d", "strict": true,
       "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}},
      {"type": "function", "name": "g", "parameters": null, "strict": null}])";
  auto request = With(kTools);
  ASSERT_TRUE(request.ok()) << request.status();
  const v1::ChatPrompt& chat = request->generate.chat();
  ASSERT_EQ(chat.tools_size(), 2);
  EXPECT_EQ(chat.tools(0).description(), "d");
  EXPECT_EQ(chat.tools(0).parameters(), R"({"type": "object", "properties": {"z": {}, "a": {}}})");
  EXPECT_TRUE(chat.tools(0).strict());
  EXPECT_FALSE(chat.tools(1).strict());
  const auto choice = [&](const std::string& value) {
    const auto with = With(std::string(kTools) + R"(, "tool_choice": )" + value);
    EXPECT_TRUE(with.ok()) << with.status();
    return with->generate.chat().tool_choice();
  };
  EXPECT_EQ(choice(R"("required")").mode(), v1::ToolChoice::REQUIRED);
  EXPECT_EQ(choice(R"("none")").mode(), v1::ToolChoice::NONE);
  const v1::ToolChoice named = choice(R"({"type": "function", "name": "g"})");
  EXPECT_THAT(named.names(), ElementsAre("g"));
  EXPECT_TRUE(named.single());
  const v1::ToolChoice allowed = choice(
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]})");
  EXPECT_EQ(allowed.mode(), v1::ToolChoice::AUTO);
  EXPECT_THAT(allowed.names(), ElementsAre("f"));
  request = With(std::string(kTools) + R"(, "parallel_tool_calls": false)");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->generate.chat().tool_choice().single());
}

TEST(ResponseRequest, HasTheFormatOfTheText) {
  const std::string schema = R"({"type": "object", "properties": {"z": {}, "a": {}}})";
  const auto request =
      With(R"("text": {"verbosity": "medium", "format": {"type": "json_schema", "name": "n",
              "strict": true, "schema": )" +
           schema + "}}");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->generate.structured().json_schema(), schema) << "its keys are not sorted";
  const auto free = With(R"("text": {"format": {"type": "json_object"}})");
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_TRUE(free->generate.structured().json_object());
  const auto plain = With(R"("text": {"format": {"type": "text"}})");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->generate.structured().constraint_case(), 0);
}

TEST(ResponseRequest, HasTheRestOfTheAnswersFields) {
  const auto request = With(R"("max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25, "seed": 7,
      "reasoning": {"effort": "low", "summary": "auto"}, "prompt_cache_key": "k",
      "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->generate.stop().max_tokens(), 9u);
  EXPECT_EQ(request->generate.sampling().temperature(), 0.5f);
  EXPECT_EQ(request->generate.sampling().top_p(), 0.25f);
  EXPECT_EQ(request->generate.sampling().seed(), 7);
  EXPECT_EQ(request->generate.chat().reasoning_effort(), "low");
  EXPECT_EQ(request->generate.cache().affinity_key(), "k");
  EXPECT_EQ(request->generate.reasoning(), v1::REASONING_APART);
}

// What OpenAI's Agents SDK sends without being asked.
TEST(ResponseRequest, TakesWhatAsksForNothing) {
  for (const char* fields :
       {R"("store": true)", R"("store": false)", R"("include": [])", R"("tools": [])",
        R"("background": false)", R"("truncation": "auto")", R"("previous_response_id": null)",
        R"("text": {})", R"("metadata": {})", R"("reasoning": {"effort": null})", R"("user": "u")",
        R"("service_tier": "auto")", R"("stream_options": {"include_obfuscation": false})"}) {
    EXPECT_TRUE(With(fields).ok()) << fields << With(fields).status();
  }
}

struct BadResponseField {
  std::string fields;
  std::string param;
  std::string message;
};

class RefusedResponseField : public ::testing::TestWithParam<BadResponseField> {};

TEST_P(RefusedResponseField, IsNamed) {
  const auto request = ParseText("{" + GetParam().fields + "}");
  ASSERT_FALSE(request.ok());
  const HttpResponse response = ErrorResponse(request.status());
  EXPECT_EQ(response.status, 400);
  const Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["param"], GetParam().param);
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedResponseField,
    ::testing::Values(
        BadResponseField{R"("model": "tiny")", "input", "is needed"},
        BadResponseField{R"("input": [])", "input", "has 0 items"},
        BadResponseField{R"("input": 7)", "input", "must be a text or a list of items"},
        BadResponseField{R"("input": [7])", "input[0]", "must be an object"},
        BadResponseField{R"("input": [{"content": "x"}])", "input[0].role", "is needed"},
        BadResponseField{R"("input": [{"role": "user"}])", "input[0].content", "is needed"},
        BadResponseField{
            R"("input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}])",
            "input[0].content[0].type", "is `input_image`; only text is supported"},
        BadResponseField{R"("input": [{"type": "item_reference", "id": "i"}])", "input[0].type",
                         "needs stored state; send the item"},
        BadResponseField{R"("input": [{"type": "web_search_call", "id": "i"}])", "input[0].type",
                         "is `web_search_call`; this server has message, function_call"},
        BadResponseField{R"("input": [{"type": "function_call", "name": "f"}])", "input[0].call_id",
                         "is needed"},
        BadResponseField{R"("input": [{"type": "function_call_output", "call_id": "c"}])",
                         "input[0].output", "is needed"},
        BadResponseField{R"("input": "a", "previous_response_id": "resp_1")",
                         "previous_response_id", "needs stored state, which this server does not"},
        BadResponseField{R"("input": "a", "conversation": "conv_1")", "conversation",
                         "needs stored state"},
        BadResponseField{R"("input": "a", "background": true)", "background", "needs stored state"},
        BadResponseField{R"("input": "a", "prompt": {"id": "pmpt_1"})", "prompt",
                         "is for /v1/completions"},
        BadResponseField{R"("input": "a", "max_tokens": 9)", "max_tokens", "use max_output_tokens"},
        BadResponseField{R"("input": "a", "max_output_tokens": 0)", "max_output_tokens", "is 0"},
        BadResponseField{R"("input": "a", "tools": [{"type": "web_search"}])", "tools[0].type",
                         "is `web_search`; only function is supported"},
        BadResponseField{R"("input": "a", "tools": [{"type": "function"}])", "tools[0].name",
                         "is needed"},
        BadResponseField{R"("input": "a", "tool_choice": {"type": "file_search"})",
                         "tool_choice.type", "is `file_search`"},
        BadResponseField{R"("input": "a", "text": {"verbosity": "low"})", "text.verbosity",
                         "this server has only `medium`"},
        BadResponseField{R"("input": "a", "text": {"format": {"type": "grammar"}})",
                         "text.format.type", "this server has text, json_object and json_schema"},
        BadResponseField{
            R"("input": "a", "text": {"format": {"type": "json_schema", "name": "n"}})",
            "text.format.schema", "is needed"},
        BadResponseField{R"("input": "a", "text": {"color": "red"})", "text.color",
                         "is not supported"},
        BadResponseField{R"("input": "a", "reasoning": {"mode": "pro"})", "reasoning.mode",
                         "is `pro`"},
        BadResponseField{R"("input": "a", "include": ["message.output_text.logprobs"])",
                         "include[0]", "which /v1/responses does not give"},
        BadResponseField{R"("input": "a", "metadata": {"k": 1})", "metadata.k",
                         "must be a string"}));

TEST(ResponseEcho, HasTheRequestsFieldsOrTheirDefaults) {
  const Json body =
      Json::parse(R"({"input": "a", "temperature": 0.5, "tools": [{"type": "function"}],
                                    "metadata": {"a": "b"}, "top_p": null, "store": true})");
  const Json echo = Json::parse("{" + EchoMembers(body) + "}");
  EXPECT_EQ(echo["temperature"], 0.5);
  EXPECT_EQ(echo["tools"], body["tools"]);
  EXPECT_EQ(echo["metadata"], body["metadata"]);
  EXPECT_EQ(echo["top_p"], 1.0);
  EXPECT_EQ(echo["tool_choice"], "auto");
  EXPECT_EQ(echo["parallel_tool_calls"], true);
  EXPECT_EQ(echo["store"], false) << "nothing is stored, whatever was asked";
  EXPECT_TRUE(echo["instructions"].is_null());
}

TEST(ResponseEcho, LeavesOutWhatDoesNotFit) {
  const Json long_tools = Json::array({std::string(kEchoBytesMax - 500, 'a')});
  const Json body = {{"instructions", std::string(500, 'a')}, {"tools", long_tools}};
  const std::string text = EchoMembers(body);
  const Json echo = Json::parse("{" + text + "}");
  EXPECT_EQ(echo["tools"], long_tools);
  EXPECT_TRUE(echo["instructions"].is_null());
  EXPECT_LE(text.size(), kEchoBytesMax + 500);
  const Json longer = {{"tools", Json::array({std::string(kEchoBytesMax, 'a')})},
                       {"instructions", "Be brief."}};
  const Json rest = Json::parse("{" + EchoMembers(longer) + "}");
  EXPECT_EQ(rest["tools"], Json::array());
  EXPECT_EQ(rest["instructions"], "Be brief.");
}

}  // namespace
}  // namespace penstock
