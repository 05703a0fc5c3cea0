#include "model/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using testing::HasSubstr;

std::string ParseError(const std::string& source) {
  const auto parsed = ChatTemplate::Parse(source);
  return parsed.ok() ? "no error" : Message(parsed.status());
}

absl::StatusOr<std::string> Render(const std::string& source, const ChatInput& input = {}) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(input);
}

TEST(ChatTemplate, RefusesWhatItDoesNotSupportWhenItIsLoaded) {
  EXPECT_EQ(ParseError("a\nb\n{{ x | urlize }}"), "line 3: filter 'urlize' is not supported");
  EXPECT_EQ(ParseError("{{ x is prime }}"), "line 1: test 'prime' is not supported");
  EXPECT_EQ(ParseError("\n{{ x.format(1) }}"), "line 2: method 'format' is not supported");
  EXPECT_EQ(ParseError("{{ lipsum(1) }}"), "line 1: function 'lipsum' is not supported");
  EXPECT_EQ(ParseError("{% include 'x' %}"), "line 1: tag 'include' is not supported here");
  EXPECT_EQ(ParseError("{% for x in y recursive %}{% endfor %}"),
            "line 1: recursive loops are not supported");
  EXPECT_THAT(ParseError("{{ x | tojson(foo=1) }}"), HasSubstr("has no argument 'foo'"));
  EXPECT_THAT(ParseError("{{ x | trim('a', 'b') }}"), HasSubstr("takes at most 1 arguments"));
  EXPECT_THAT(ParseError("{{ x | replace('a') }}"), HasSubstr("filter 'replace' needs 'new'"));
  EXPECT_THAT(ParseError("{{ x | map('nope') }}"), HasSubstr("filter 'nope' is not supported"));
  EXPECT_THAT(ParseError("{{ x | select('nope') }}"), HasSubstr("test 'nope' is not supported"));
  EXPECT_THAT(ParseError("{{ f(*x) }}"), HasSubstr("arguments with * are not supported"));
}

TEST(ChatTemplate, NamesTheLineOfASyntaxError) {
  EXPECT_EQ(ParseError("a\n{% if x %}"), "line 2: the template ends without 'endif'");
  EXPECT_EQ(ParseError("{{ 'abc }}"), "line 1: a string has no end");
  EXPECT_EQ(ParseError("\n\n{# x"), "line 3: a comment has no end");
  EXPECT_EQ(ParseError("{{ 1 + }}"), "line 1: unexpected the end of the expression");
  EXPECT_EQ(ParseError("{{ (1 }}"), "line 1: unexpected '}'");
  EXPECT_EQ(ParseError("{% endif %}"), "line 1: tag 'endif' is not supported here");
  EXPECT_EQ(ParseError("{{ $ }}"), "line 1: unexpected character '$'");
  EXPECT_EQ(ParseError("{% break %}"), "line 1: 'break' outside of a loop");
  EXPECT_THAT(ParseError("\xFF"), HasSubstr("not valid UTF-8 at byte 0"));
}

TEST(ChatTemplate, TellsTheLineOfAnErrorInRendering) {
  const auto rendered = Render("a\n{{ x.y }}");
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(rendered.status()), "line 2: 'x' is undefined");
  EXPECT_EQ(Message(Render("{{ raise_exception('only users') }}").status()), "only users");
}

std::string Repeated(const std::string& text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplate, BoundsTheTemplate) {
  EXPECT_THAT(ParseError(std::string(ChatTemplate::kMaxTemplateBytes + 1, 'a')),
              HasSubstr("the limit is"));
  EXPECT_THAT(ParseError("{{ " + Repeated("(", 5000) + "1" + Repeated(")", 5000) + " }}"),
              HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError("{{ " + Repeated("not ", 5000) + "1 }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError("{{ " + Repeated("- ", 5000) + "1 }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError("{{ 1" + Repeated(" + 1", 5000) + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError("{{ x" + Repeated(".x", 5000) + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(ParseError(Repeated("{% if x %}", 5000)), HasSubstr("nested deeper"));
}

TEST(ChatTemplate, BoundsTheWork) {
  const auto code = [](const std::string& source) { return Render(source).status().code(); };
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  const std::string loop = "{% for i in range(100000) %}";
  EXPECT_EQ(code(loop + loop + "{% endfor %}{% endfor %}"), kExhausted);
  EXPECT_EQ(code(loop + Repeated("x", 1000) + "{% endfor %}"), kExhausted);
  EXPECT_EQ(code("{{ 'x' * 1000000000000 }}"), kExhausted);
  EXPECT_EQ(
      code("{% set ns = namespace(a='x') %}" + loop + "{% set ns.a = ns.a ~ ns.a %}{% endfor %}"),
      kExhausted);
  EXPECT_EQ(
      code("{% set ns = namespace(a=[1]) %}" + loop + "{% set ns.a = ns.a + ns.a %}{% endfor %}"),
      kExhausted);
  EXPECT_EQ(code("{{ ('a' * 1000000) | replace('', 'x' * 1000000) }}"), kExhausted);
  EXPECT_EQ(code("{{ (['a' * 10000000] * 3) | join }}"), kExhausted);
  EXPECT_EQ(code("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), kExhausted);
  EXPECT_EQ(code("{% set ns = namespace(a=1) %}" + loop + "{% set ns.a = [ns.a] %}{% endfor %}"),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("{{ range(100000000) }}"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("{{ 9223372036854775807 + 1 }}"), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, BoundsTheInput) {
  ChatJson deep = 1;
  for (int i = 0; i < 1000; ++i) deep = ChatJson::array({deep});
  EXPECT_FALSE(Render("x", {.messages = deep}).ok());
  const auto rendered = Render("x", {.messages = {{{"content", "\xFF"}}}});
  EXPECT_THAT(Message(rendered.status()), HasSubstr("not valid UTF-8"));
}

TEST(ChatTemplate, TheBundledModelsRenders) {
  const std::string directory = ModelFolder();
  const auto chat_template = LoadChatTemplate(directory);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto text = (*chat_template)
                        ->Render({.messages = {{{"role", "user"}, {"content", " Hi "}}},
                                  .bos_token = (*tokenizer)->bos_token(),
                                  .eos_token = (*tokenizer)->eos_token()});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|bos|><|user|>Hi<|end|><|assistant|>");
  const auto ids =
      (*tokenizer)->Encode(*text, {.add_special_tokens = false, .parse_special_tokens = true});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->front(), (*tokenizer)->bos_id());
  EXPECT_EQ(ids->back(), (*tokenizer)->FindToken("<|assistant|>"));
  EXPECT_EQ((*tokenizer)->Decode(*ids, /*skip_special_tokens=*/true), "Hi");
}

class ChatTemplateFiles : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) { folder_.Write(name, text); }
  std::string RenderLoaded() {
    const auto loaded = LoadChatTemplate(folder_.path());
    if (!loaded.ok()) return std::string(loaded.status().ToString());
    return *(*loaded)->Render({});
  }

  const TempFolder folder_;
};

TEST_F(ChatTemplateFiles, JinjaFileOverridesTheConfig) {
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(RenderLoaded(), "config");
  Write("chat_template.jinja", "file\n");
  EXPECT_EQ(RenderLoaded(), "file");
}

TEST_F(ChatTemplateFiles, TakesTheDefaultOfNamedTemplates) {
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(RenderLoaded(), "d");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THAT(RenderLoaded(), HasSubstr("no template named \"default\""));
}

TEST_F(ChatTemplateFiles, TellsWhereThereIsNone) {
  EXPECT_THAT(RenderLoaded(), HasSubstr("NOT_FOUND"));
  Write("tokenizer_config.json", "{}");
  EXPECT_THAT(RenderLoaded(), HasSubstr("NOT_FOUND"));
  Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(RenderLoaded(), HasSubstr("chat_template is 5, expected a string"));
  Write("chat_template.jinja", "{{ x | nope }}");
  EXPECT_THAT(RenderLoaded(), HasSubstr("chat template: line 1: filter 'nope' is not supported"));
}

}  // namespace
}  // namespace penstock
