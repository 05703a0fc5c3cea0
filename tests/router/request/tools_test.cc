#include "router/request/tools.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>

#include "lab/fake/test_model.h"
#include "model/template/chat_template.h"
#include "router/request/error_detail.h"
#include "router/session/session_request.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

// In the manner of Qwen 3, over the test model's tokens.
constexpr char kTemplate[] =
    R"({%- if tools %}{{ tools | tojson }}{% endif %})"
    R"({%- for m in messages %}<|im_start|>{{ m.role }}|{{ m.tool_call_id }}|{{ m.content }}|)"
    R"({%- for call in m.tool_calls %}{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}<|im_end|>)"
    R"({% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if role == 'tool' %}{% endif %}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% elif enable_thinking is defined %}{{ '<think>\n' }}{% endif %}{% endif %})";

constexpr char kTools[] = R"(chat {
  messages { role: 'user' content { text: 'Hi' } }
  tools { name: 'get_weather' description: 'd' parameters: '{"properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}' }
  tools { name: 'stop' }
)";

class ToolsTest : public ::testing::Test {
 protected:
  ToolsTest() : model_(MakeTestModelWith(kTemplate)) {}

  absl::StatusOr<PreparedRequest> Prepare(const std::string& text) {
    v1::GenerateRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
    return PrepareRequest(
        {.request = request, .model = model_, .max_model_len = model_.max_model_len, .random = 7});
  }
  std::string Refusal(const std::string& text) { return Message(Prepare(text).status()); }
  std::string PromptOf(const PreparedRequest& prepared) {
    return model_.tokenizer->Decode(prepared.session.prompt, /*skip_special_tokens=*/false);
  }

  ServedModel model_;
};

TEST_F(ToolsTest, ShowToolsToTheTemplateInTheirOrder) {
  const auto prepared = Prepare(std::string(kTools) + "}");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(
      PromptOf(*prepared),
      R"([{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}}}, )"
      R"({"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}])"
      "<|im_start|>user||Hi|<|im_end|><|im_start|>assistant\n");
  const AnswerSpec& answer = prepared->session.answer;
  EXPECT_EQ(answer.parts.calls->name, "hermes");
  EXPECT_THAT(answer.parts.tools, ElementsAre(Field(&CalledTool::name, "get_weather"),
                                              Field(&CalledTool::name, "stop")));
  EXPECT_FALSE(answer.sampling.grammar().empty());
  EXPECT_THAT(answer.sampling.stop_token_ids(), ElementsAre(kTestImEnd));
}

TEST_F(ToolsTest, HaveBreakpoints) {
  for (const int tool : {0, 1}) {
    std::string text = std::string(kTools) + "}";
    const std::string name = tool == 0 ? "get_weather" : "stop";
    text.insert(text.find("tools { name: '" + name) + 8, "breakpoint { ttl { seconds: 60 } } ");
    const auto prepared = Prepare(text);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_EQ(prepared->session.breakpoints.size(), 1u);
    const std::string prefix =
        PromptOf(*prepared).substr(0, prepared->session.breakpoints[0].tokens);
    EXPECT_THAT(prefix, HasSubstr("\"name\": \"" + name)) << "tokens are bytes";
    EXPECT_THAT(prefix, HasSubstr(tool == 0 ? "\"integer\"}}}}" : "\"properties\": {}}}"));
    EXPECT_THAT(prefix, testing::Not(HasSubstr(tool == 0 ? "stop" : "<|im_start|>")));
  }
}

TEST_F(ToolsTest, ShowEarlierCallsAndResults) {
  const auto prepared = Prepare(R"(chat {
    messages { role: 'user' content { text: 'Hi' } }
    messages { role: 'assistant' tool_calls { id: 'c1' name: 'f' arguments: '{"b": 1, "a": "é"}' } }
    messages { role: 'tool' tool_call_id: 'c1' content { text: 'done' } } })");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(PromptOf(*prepared),
              HasSubstr("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"é\"}}\n"
                        "</tool_call><|im_end|><|im_start|>tool|c1|done|<|im_end|>"));
  EXPECT_TRUE(prepared->session.answer.sampling.grammar().empty());
  EXPECT_EQ(prepared->session.answer.parts.calls, nullptr);
}

std::string GptOssTemplate() {
  return ReadFile(SourceFolder() + "/tests/golden/templates/models/gpt_oss.jinja");
}

TEST_F(ToolsTest, AreCalledBehindTheChannelsOfHarmony) {
  model_ = MakeTestModelWith(GptOssTemplate());
  auto prepared = Prepare(std::string(kTools) + "}");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(PromptOf(*prepared), HasSubstr("// \ntype stop = () => any;"));
  AnswerSpec answer = prepared->session.answer;
  EXPECT_EQ(answer.parts.calls->name, "harmony");
  ASSERT_NE(answer.parts.reasoning, nullptr) << "the prompt's end is not that of reasoning";
  EXPECT_FALSE(answer.parts.reasoning_begun);
  EXPECT_TRUE(answer.show_markers);
  EXPECT_THAT(answer.sampling.grammar(), HasSubstr("root ::= message* body\n"));
  prepared = Prepare(std::string(kTools) + "tool_choice { mode: NONE } }");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->session.answer.parts.calls, nullptr);
  EXPECT_NE(prepared->session.answer.parts.reasoning, nullptr);
}

TEST_F(ToolsTest, ShowEarlierReasoningToHarmony) {
  model_ = MakeTestModelWith(GptOssTemplate());
  const auto with = [](const std::string& message) {
    return "chat { messages { role: 'user' content { text: 'Hi' } } messages { role: 'assistant' " +
           message + " } }";
  };
  const std::string call = "tool_calls { id: 'c' name: 'f' arguments: '{\"a\": 1}' }",
                    shown =
                        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
                        "{\"a\": 1}<|call|><|start|>assistant";
  auto prepared = Prepare(with("reasoning: 'I need f.' " + call));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(PromptOf(*prepared), HasSubstr("analysis<|message|>I need f.<|end|>" + shown));
  prepared = Prepare(with("reasoning: 'I need f.' content { text: 'Wait.' } " + call));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(PromptOf(*prepared), HasSubstr("analysis<|message|>Wait.<|end|>" + shown));
  EXPECT_THAT(Refusal(with(call + call)),
              HasSubstr("chat.messages[1].tool_calls has 2 calls; the chat template of test-model "
                        "shows one in a message"));
}

TEST_F(ToolsTest, LimitWhatMayBeCalled) {
  const auto prepared =
      Prepare(std::string(kTools) + "tool_choice { mode: REQUIRED names: 'stop' single: true } }");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(PromptOf(*prepared), HasSubstr("get_weather")) << "the prefix stays the same";
  EXPECT_THAT(prepared->session.answer.parts.tools, ElementsAre(Field(&CalledTool::name, "stop")));
}

TEST_F(ToolsTest, RefuseByNameWhatCannotBeEnforced) {
  const auto with = [](const std::string& schema, const std::string& more) {
    return "chat { messages { role: 'user' content { text: 'Hi' } } tools { name: 'f' parameters: "
           "'" +
           schema + "' " + more;
  };
  const std::string unique = R"({"type": "object", "properties": {"a": {"uniqueItems": true}}})";
  constexpr char kMessage[] =
      "chat.tools[0].parameters of `f` is not supported: /properties/a: has the keyword "
      "`uniqueItems`";
  EXPECT_THAT(Refusal(with(unique, "strict: true } }")), HasSubstr(kMessage));
  EXPECT_THAT(Refusal(with(unique, "} tool_choice { mode: REQUIRED } }")), HasSubstr(kMessage));
  EXPECT_TRUE(Prepare(with(unique, "} }")).ok()) << "any object, as it is not strict";
  EXPECT_THAT(
      Refusal(with(R"({"type": "array"})", "} }")),
      HasSubstr("chat.tools[0].parameters must be the schema of an object: its type is \"array\""));
  EXPECT_THAT(Refusal(with("[", "} }")), HasSubstr("is not a JSON Schema object"));
}

TEST_F(ToolsTest, RefuseWrongNames) {
  const std::pair<std::string, std::string> cases[] = {
      {"tools { name: 'stop' } }", "chat.tools[2].name is `stop`, as that of an earlier tool"},
      {"tools { name: 'a b' } }", "chat.tools[2].name must have 1 to 128 letters"},
      {"tool_choice { names: 'go' } }", "chat.tool_choice names `go`, which is not in the list"}};
  for (const auto& [more, message] : cases) {
    EXPECT_THAT(Refusal(kTools + more), HasSubstr(message));
  }
  EXPECT_THAT(Refusal("chat { messages { role: 'user' content { text: 'Hi' } } tool_choice { mode: "
                      "REQUIRED } }"),
              HasSubstr("chat.tool_choice needs a list of tools"));
}

TEST_F(ToolsTest, AreRefusedByModelsThatCallNone) {
  model_ = MakeTestModel();
  EXPECT_THAT(Refusal(std::string(kTools) + "}"),
              HasSubstr("chat.tools are not supported by test-model: the chat template shows no "
                        "known notation of tool calls; start the router with --tool_format"));
}

TEST_F(ToolsTest, FindReasoningThatThePromptBegins) {
  const std::string chat = "chat { messages { role: 'user' content { text: 'Hi' } } ";
  auto prepared = Prepare(chat + "}");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->session.answer.parts.reasoning_begun);
  EXPECT_TRUE(prepared->session.answer.sampling.grammar().empty());
  prepared = Prepare(chat + "reasoning_effort: 'high' }");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(prepared->session.answer.parts.reasoning_begun);
  for (const char* off :
       {"reasoning_effort: 'none' }", "template_options: '{\"enable_thinking\": false}' }"}) {
    prepared = Prepare(chat + off);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(prepared->session.answer.parts.reasoning, nullptr) << "the prompt has ended it";
    EXPECT_THAT(PromptOf(*prepared), HasSubstr("</think>"));
  }
  prepared = Prepare(chat + "} reasoning: REASONING_IN_TEXT");
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->session.answer.parts.reasoning, nullptr);
}

TEST_F(ToolsTest, RefuseVariablesThatTheTemplateDoesNotName) {
  const auto with = [](const std::string& options) {
    return "chat { messages { role: 'user' content { text: 'Hi' } } " + options + " }";
  };
  EXPECT_THAT(Refusal(with("template_options: '{\"x\": 1}'")),
              HasSubstr("chat.template_options.x has no effect: the chat template of test-model"));
  EXPECT_THAT(Refusal(with("template_options: '{\"messages\": 1}'")),
              HasSubstr("chat.template_options.messages is set by the router"));
  EXPECT_THAT(Refusal(with("reasoning_effort: 'huge'")),
              HasSubstr("is `huge`; it must be one of none, minimal, low, medium, high, xhigh"));
  model_ = MakeTestModel();
  EXPECT_THAT(Refusal(with("reasoning_effort: 'high'")), HasSubstr("does not reason"));
  EXPECT_TRUE(Prepare(with("reasoning_effort: 'none'")).ok());
}

}  // namespace
}  // namespace penstock
