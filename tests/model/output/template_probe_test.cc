#include "model/output/template_probe.h"

#include <gmock/gmock.h>

#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<const ChatTemplate> Parsed(std::string_view text) {
  auto parsed = ChatTemplate::Parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *std::move(parsed);
}

// In the manner of Qwen 2.5.
constexpr char kHermes[] =
    R"({%- if tools %}{{ tools | tojson }} {"name": <name>, "arguments": <args>}{% endif %})"
    R"({%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.content %}{{ '\n' + m.content }}{% endif %}
{%- for call in m.tool_calls %}{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}<|im_end|>
{% endfor %})";

// In the manner of DeepSeek V3: the arguments are joined as text, and content is none.
constexpr char kDeepSeek[] =
    R"({%- for m in messages %}{% if m.role == 'assistant' and m.content is none %})"
    R"({{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}{% for call in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\n```json\n' + call.function.arguments + '\n```<｜tool▁call▁end｜>' }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }})"
    R"({% else %}{{ m.content }}{% endif %}{% endfor %})";

TEST(TemplateProbe, FindsTheStyleOfEarlierCalls) {
  const auto hermes = Parsed(kHermes);
  const CallNotation* notation = FindCallNotation(hermes->source());
  ASSERT_NE(notation, nullptr);
  EXPECT_EQ(notation->name, "hermes");
  auto style = ProbeTemplate(*hermes, *notation, "", "");
  ASSERT_TRUE(style.ok()) << style.status();
  EXPECT_FALSE(style->arguments_as_text);

  const auto deepseek = Parsed(kDeepSeek);
  notation = FindCallNotation(deepseek->source());
  ASSERT_NE(notation, nullptr);
  EXPECT_EQ(notation->name, "deepseek-v3");
  style = ProbeTemplate(*deepseek, *notation, "", "");
  ASSERT_TRUE(style.ok()) << style.status();
  EXPECT_TRUE(style->arguments_as_text);
  EXPECT_TRUE(style->content_null);
}

// In the manner of Qwen3-Coder.
TEST(TemplateProbe, ReadsCallsOfParameters) {
  const auto coder = Parsed(
      R"({%- for m in messages %}{{ m.content }}{% for call in m.tool_calls %}{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }})"
      R"({%- for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\n' }}{{ value | tojson if value is mapping else value | string }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}{% endfor %})");
  const CallNotation* notation = FindCallNotation(coder->source());
  ASSERT_NE(notation, nullptr);
  EXPECT_EQ(notation->name, "qwen3-coder");
  const auto style = ProbeTemplate(*coder, *notation, "", "");
  ASSERT_TRUE(style.ok()) << style.status();
  EXPECT_FALSE(style->arguments_as_text);
}

TEST(TemplateProbe, ReadsCallsThatAreShownInAnotherForm) {
  const auto harmony =
      Parsed(ReadFile(SourceFolder() + "/tests/golden/templates/models/gpt_oss.jinja"));
  const CallNotation* notation = FindCallNotation(harmony->source());
  ASSERT_NE(notation, nullptr);
  EXPECT_EQ(notation->name, "harmony");
  const auto style = ProbeTemplate(*harmony, *notation, "", "");
  ASSERT_TRUE(style.ok()) << style.status();
  EXPECT_FALSE(style->arguments_as_text);
  EXPECT_FALSE(style->content_null) << "it looks for markers in content";
  EXPECT_TRUE(style->describes) << "it joins each tool's description";
  const auto as_written = Parsed(
      R"({% for m in messages %}{% for call in m.tool_calls %}<|start|>assistant<|channel|>commentary to=functions.{{ call.function.name }} <|constrain|>json<|message|>{{ call.function.arguments }}<|call|>{% endfor %}{% endfor %})");
  EXPECT_TRUE(ProbeTemplate(*as_written, *notation, "", "").ok());
  const auto other = Parsed(
      R"({% for m in messages %}{% for call in m.tool_calls %} to=functions.{{ call.function.name }}<|message|>{{ call.function.arguments }}{% endfor %}{% endfor %})");
  EXPECT_FALSE(ProbeTemplate(*other, *notation, "", "").ok());
}

TEST(TemplateProbe, RefusesTemplatesThatLoseCalls) {
  const auto plain = Parsed("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}");
  EXPECT_EQ(FindCallNotation(plain->source()), nullptr);
  EXPECT_THAT(Message(ProbeTemplate(*plain, *CallNotationOf("hermes"), "", "").status()),
              HasSubstr("another notation than hermes"));
  const auto strict = Parsed("{{ raise_exception('tools are not for this model') }}");
  EXPECT_THAT(Message(ProbeTemplate(*strict, *CallNotationOf("hermes"), "", "").status()),
              HasSubstr("tools are not for this model"));
}

TEST(OutputFormat, IsFoundFromTheWordsOfATemplate) {
  const std::pair<const char*, const char*> kTemplates[] = {
      {R"(<tool_call> {"name": x, "arguments": y})", "hermes"},
      {R"(<|start_header_id|>ipython '"parameters": ')", "llama3"},
      {"<tool_call> <function=x> <parameter=y> arguments", "qwen3-coder"},
      {"<tool_call>x <arg_key>y</arg_key> <arg_value>", "glm-4.5"},
      {R"([TOOL_CALLS] [ "name" ])", "mistral"},
      {R"([TOOL_CALLS]x[ARGS])", "mistral-args"},
      {R"(<|start_of_role|> <|tool_call|>)", "granite"},
      {R"('functions.' + name + '<|channel|>commentary json<|message|>')", "harmony"},
      {R"(<｜tool▁calls▁begin｜> <｜tool▁sep｜>)", "deepseek-v3.1"}};
  for (const auto& [text, name] : kTemplates) {
    const CallNotation* found = FindCallNotation(text);
    ASSERT_NE(found, nullptr) << text;
    EXPECT_EQ(found->name, name);
  }
  EXPECT_EQ(FindReasoningNotation("split('</think>')")->begin, "<think>");
  const ReasoningNotation* harmony =
      FindReasoningNotation(R"("<|start|>assistant<|channel|>analysis<|message|>" + m.thinking)");
  ASSERT_NE(harmony, nullptr);
  EXPECT_TRUE(harmony->messages());
  EXPECT_FALSE(FindReasoningNotation("split('</think>')")->messages());
  EXPECT_EQ(FindReasoningNotation("no"), nullptr);
}

}  // namespace
}  // namespace penstock
