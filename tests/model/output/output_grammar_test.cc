#include "model/output/output_grammar.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/grammar/grammar.h"
#include "model/grammar/schema_grammar.h"
#include "model/grammar/structured_output.h"
#include "model/output/output_parser.h"
#include "model/output/xml_arguments.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/model/output/harmony_markers.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using Calls = OutputRules::Calls;

const Tokenizer& Words() {
  static const auto tokenizer = *Tokenizer::Load(ModelFolder());
  return *tokenizer;
}
uint32_t Stop() { return *Words().eos_id(); }

// An answer under a grammar: texts that it must accept, and then random tokens.
class Answer {
 public:
  explicit Answer(const std::string& grammar) {
    static const auto compiler = *GrammarCompiler::Create(Words(), Words().vocab_size());
    auto compiled = compiler->Compile(grammar);
    EXPECT_TRUE(compiled.ok()) << compiled.status() << grammar;
    const uint32_t stop = Stop();
    mask_ = *TokenMask::Open(*compiled, {&stop, 1});
  }

  // False when the grammar does not allow the whole text.
  bool Write(const std::string& text) {
    const auto ids = *Words().Encode(text, {.add_special_tokens = false});
    const bool good = std::ranges::all_of(ids, [&](uint32_t id) { return mask_->Accept(id).ok(); });
    text_ += text;
    return good;
  }
  bool MayEnd() { return std::ranges::count(Allowed(), Stop()) > 0; }
  std::vector<uint32_t> Allowed() {
    std::vector<uint32_t> bits(TokenMask::WordsFor(Words().vocab_size())), allowed;
    EXPECT_TRUE(mask_->Fill(bits).ok());
    for (uint32_t id = 0; id < Words().vocab_size(); ++id) {
      if ((bits[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    return allowed;
  }
  // Draws allowed tokens until the answer ends, which is as early as possible.
  void Finish(std::mt19937& random, size_t tokens_max) {
    for (size_t i = 0; i < tokens_max && !mask_->ended(); ++i) {
      const std::vector<uint32_t> allowed = Allowed();
      uint32_t id = allowed[random() % allowed.size()];
      if (std::ranges::count(allowed, Stop()) > 0) id = Stop();
      ASSERT_TRUE(mask_->Accept(id).ok());
      if (id != Stop()) text_ += Words().TokenBytes(id);
    }
  }
  bool ended() const { return mask_->ended(); }
  const std::string& text() const { return text_; }

 private:
  std::unique_ptr<TokenMask> mask_;
  std::string text_;
};

constexpr char kSetLevel[] =
    R"({"type": "object", "properties": {"level": {"enum": [1, 2, 3]}, "loud": {"type": "boolean"},
        "mood": {"type": "string", "enum": ["a", "b \"c\""]}}, "required": ["level"]})";

std::vector<CallableTool> Tools(const CallNotation& notation) {
  if (notation.key_begin.empty()) {
    return {{.name = "set_level", .arguments = *SchemaGrammar(kSetLevel, true)},
            {.name = "stop", .arguments = "root ::= \"{}\"\n"}};
  }
  const auto set_level = XmlArgumentsOf(kSetLevel, notation, /*enforced=*/true);
  EXPECT_TRUE(set_level.ok()) << set_level.status();
  return {{.name = "set_level", .arguments = set_level->grammar, .texts = set_level->texts},
          {.name = "stop", .arguments = XmlArgumentsOf("{}", notation, true)->grammar}};
}

OutputRules Rules(const CallNotation& notation, Calls calls) {
  return {.calls = calls, .notation = &notation, .tools = Tools(notation)};
}

std::string GrammarOf(const OutputRules& rules) {
  const auto grammar = OutputGrammar(rules);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *grammar;
}

struct FoundCall {
  std::string name;
  std::string arguments;
};

std::vector<FoundCall> CallsIn(const OutputRules& rules, const std::string& text) {
  OutputParser parser({.calls = rules.notation,
                       .tools = {{.name = "set_level", .texts = {"mood"}}, {.name = "stop"}},
                       .reasoning = rules.reasoning,
                       .reasoning_begun = rules.reasoning_begun});
  std::vector<OutputPiece> pieces = parser.Feed(text);
  const auto more = parser.Flush();
  pieces.insert(pieces.end(), more.begin(), more.end());
  std::vector<FoundCall> found;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == OutputPiece::Kind::kCall) found.push_back({piece.text, ""});
    if (piece.kind == OutputPiece::Kind::kArguments) found.back().arguments += piece.text;
  }
  return found;
}

void ExpectValid(const FoundCall& call) {
  const Json arguments = Json::parse(call.arguments, nullptr, false);
  ASSERT_TRUE(arguments.is_object()) << call.arguments;
  if (call.name == "stop") {
    EXPECT_TRUE(arguments.empty());
  } else {
    EXPECT_GE(arguments.value("level", 0), 1) << call.arguments;
    EXPECT_LE(arguments.value("level", 9), 3) << call.arguments;
    const std::string mood = arguments.value("mood", "a");
    EXPECT_TRUE(mood == "a" || mood == "b \"c\"") << call.arguments;
  }
}

TEST(OutputGrammar, RequiresValidCallsOfEveryNotation) {
  std::mt19937 random(1);
  for (const CallNotation& notation : CallNotations()) {
    for (const bool single : {true, false}) {
      OutputRules rules = Rules(notation, Calls::kRequired);
      rules.single = single;
      const std::string grammar = GrammarOf(rules);
      for (int i = 0; i < 4; ++i) {
        Answer answer(grammar);
        EXPECT_FALSE(answer.MayEnd());
        answer.Finish(random, 2000);
        ASSERT_TRUE(answer.ended()) << answer.text();
        const auto calls = CallsIn(rules, answer.text());
        ASSERT_GE(calls.size(), 1u) << answer.text();
        EXPECT_TRUE(!single || calls.size() == 1) << answer.text();
        for (const FoundCall& call : calls) ExpectValid(call);
      }
    }
  }
}

TEST(OutputGrammar, ConstrainsAllowedCallsFromTheirTriggerOn) {
  std::mt19937 random(2);
  for (const CallNotation& notation : CallNotations()) {
    const OutputRules rules = Rules(notation, Calls::kAllowed);
    Answer answer(GrammarOf(rules));
    ASSERT_TRUE(answer.MayEnd());
    ASSERT_TRUE(answer.Write("Any text. {\"a\": [ <tool ")) << notation.name;
    ASSERT_TRUE(answer.MayEnd());
    ASSERT_TRUE(answer.Write(std::string(notation.trigger))) << notation.name;
    ASSERT_FALSE(answer.MayEnd()) << notation.name;
    answer.Finish(random, 2000);
    ASSERT_TRUE(answer.ended());
    const auto calls = CallsIn(rules, answer.text());
    ASSERT_GE(calls.size(), 1u) << answer.text();
    for (const FoundCall& call : calls) ExpectValid(call);
  }
}

TEST(OutputGrammar, AllowsTwoCallsOnlyWhereThereMayBeSeveral) {
  for (const CallNotation& notation : CallNotations()) {
    for (const bool single : {true, false}) {
      OutputRules rules = Rules(notation, Calls::kRequired);
      rules.single = single;
      const std::string arguments = notation.key_begin.empty() ? "{}" : "";
      const std::string call =
          "stop" + std::string(notation.name_end) + arguments + std::string(notation.call_end);
      Answer answer(GrammarOf(rules));
      ASSERT_TRUE(answer.Write(std::string(notation.section_begin) +
                               std::string(notation.call_begin) + call));
      const bool more =
          answer.Write(std::string(notation.separator) + std::string(notation.call_begin) + call);
      EXPECT_EQ(more, notation.parallel && !single) << notation.name;
    }
  }
}

TEST(XmlArguments, AllowTextsAndJson) {
  const CallNotation& notation = *CallNotationOf("qwen3-coder");
  const auto arguments = XmlArgumentsOf(
      R"({"type": "object", "properties": {"text": {"type": "string"}, "list": {"type": "array",
          "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}, "required": ["text"], "$defs": {"n": {"enum": [7]}}})",
      notation, /*enforced=*/true);
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_THAT(arguments->texts, ::testing::ElementsAre("text"));
  Answer answer(arguments->grammar);
  EXPECT_TRUE(answer.Write("<parameter=text>\na \"b\"\n\n</param"));
  EXPECT_FALSE(answer.MayEnd());
  EXPECT_TRUE(answer.Write("\n</parameter>\n"));
  EXPECT_TRUE(answer.MayEnd());
  EXPECT_TRUE(answer.Write("<parameter=list>\n[7, 7]\n</parameter>\n"));
  EXPECT_TRUE(answer.MayEnd());
  EXPECT_FALSE(Answer(arguments->grammar).Write("<parameter=list>"));
  EXPECT_FALSE(Answer(arguments->grammar).Write("<parameter=text>\na</parameter> "));
}

TEST(XmlArguments, RefuseByNameWhatTheyCannotEnforce) {
  const CallNotation& notation = *CallNotationOf("glm-4.5");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}})",
       "/properties/a: has the keyword `maxLength`, which the notation glm-4.5"},
      {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})",
       "/properties/a: has the keyword `uniqueItems`"},
      {R"({"anyOf": [{"type": "object", "properties": {"a": {}}}]})", "needs `properties`"},
      {R"({"type": "object", "properties": {"a<b": {}}})", "has a name with <"}};
  for (const auto& [schema, message] : cases) {
    EXPECT_THAT(Message(XmlArgumentsOf(schema, notation, true).status()),
                ::testing::HasSubstr(message));
  }
  EXPECT_TRUE(XmlArgumentsOf(cases[0].first, notation, false).ok());
  EXPECT_TRUE(XmlArgumentsOf(cases[1].first, notation, false).ok());
}

TEST(OutputGrammar, ForbidsCalls) {
  for (const CallNotation& notation : CallNotations()) {
    Answer answer(GrammarOf(Rules(notation, Calls::kForbidden)));
    EXPECT_TRUE(answer.Write("Text, and " + std::string(notation.trigger.substr(0, 1))));
    EXPECT_TRUE(answer.MayEnd());
    Answer other(GrammarOf(Rules(notation, Calls::kForbidden)));
    EXPECT_FALSE(other.Write(std::string(notation.trigger)));
  }
}

TEST(OutputGrammar, AllowsCallsOrTheSchema) {
  OutputRules rules = Rules(*CallNotationOf("hermes"), Calls::kAllowed);
  rules.structured = *SchemaGrammar(
      R"({"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]})",
      true);
  const std::string grammar = GrammarOf(rules);
  Answer schema(grammar);
  EXPECT_TRUE(schema.Write(R"({"city": "Rome"})"));
  EXPECT_TRUE(schema.MayEnd());
  Answer call(grammar);
  EXPECT_TRUE(call.Write("<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_TRUE(call.MayEnd());
  EXPECT_FALSE(Answer(grammar).Write("Text"));
}

TEST(OutputGrammar, ActsBehindReasoning) {
  for (const ReasoningNotation& notation : ReasoningNotations()) {
    if (notation.messages()) continue;
    const std::string begin(notation.begin), end(notation.end);
    OutputRules rules{.structured = *ChoiceGrammar({"yes", "no"}), .reasoning = &notation};
    Answer answer(GrammarOf(rules));
    EXPECT_TRUE(answer.Write(fmt::format("{0}no? maybe {0}", begin)));
    EXPECT_FALSE(answer.MayEnd());
    EXPECT_TRUE(answer.Write(end + "\n\nyes"));
    EXPECT_TRUE(answer.MayEnd());
    EXPECT_TRUE(Answer(GrammarOf(rules)).Write("no"));
    EXPECT_FALSE(Answer(GrammarOf(rules)).Write("maybe"));
    rules.reasoning_begun = true;
    Answer begun(GrammarOf(rules));
    EXPECT_TRUE(begun.Write("no, "));
    EXPECT_FALSE(begun.MayEnd());
    EXPECT_TRUE(begun.Write(end + "no"));
    EXPECT_TRUE(begun.MayEnd());
  }
}

constexpr char kHarmonyStop[] =
    "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}";

OutputRules HarmonyRules(Calls calls) {
  OutputRules rules = Rules(*CallNotationOf("harmony"), calls);
  rules.reasoning = FindReasoningNotation(kAnalysis);
  return rules;
}

bool Allows(const OutputRules& rules, const std::string& text) {
  Answer answer(GrammarOf(rules));
  return answer.Write(text) && answer.MayEnd();
}

TEST(OutputGrammar, HoldsHarmonyToItsFinalChannel) {
  OutputRules rules{.structured = *ChoiceGrammar({"yes", "no"}),
                    .reasoning = FindReasoningNotation(kAnalysis)};
  const std::string thought = kAnalysis + std::string("no? <|message|> maybe") + kNextMessage;
  for (const std::string& before : {std::string(), thought, thought + thought}) {
    EXPECT_TRUE(Allows(rules, before + kFinal + "no"));
    EXPECT_FALSE(Allows(rules, before + kFinal));
    EXPECT_FALSE(Allows(rules, before + "no"));
    EXPECT_FALSE(Allows(rules, before + kFinal + "maybe"));
    EXPECT_FALSE(Allows(rules, before + kPreamble + "no"));
  }
  EXPECT_FALSE(Allows(rules, kAnalysis + std::string("no")));
  EXPECT_FALSE(Answer(GrammarOf(rules)).Write(kAnalysis + std::string("no? <|end|> maybe")));
  rules.reasoning_begun = true;
  EXPECT_TRUE(Allows(rules, "no?" + std::string(kNextMessage) + thought + kFinal + "no"));
  EXPECT_FALSE(Allows(rules, "no"));
  EXPECT_EQ(GrammarOf({.reasoning = rules.reasoning}), "");
}

TEST(OutputGrammar, AllowsCallsBehindMessages) {
  const std::string thought = kAnalysis + std::string("Perhaps <|call|>") + kNextMessage,
                    preamble = kPreamble + std::string("Let me see.") + kNextMessage;
  const OutputRules allowed = HarmonyRules(Calls::kAllowed);
  OutputRules required = HarmonyRules(Calls::kRequired);
  const OutputRules forbidden = HarmonyRules(Calls::kForbidden);
  for (const std::string& before : {std::string(), thought, thought + thought}) {
    EXPECT_TRUE(Allows(allowed, before + kHarmonyStop));
    EXPECT_TRUE(Allows(allowed, before + preamble + kHarmonyStop));
    std::string twice = before + preamble;
    twice += before;
    EXPECT_TRUE(Allows(allowed, twice + kFinal + "Hi!"));
    EXPECT_TRUE(Allows(required, before + kHarmonyStop));
    EXPECT_FALSE(Allows(required, before + preamble));
    EXPECT_FALSE(Allows(required, before + kFinal));
    EXPECT_TRUE(Allows(forbidden, before + preamble + kFinal + "Hi!"));
    EXPECT_FALSE(Allows(forbidden, before + kHarmonyStop));
    EXPECT_FALSE(Allows(forbidden, before + kFinal + "Hi!" + kHarmonyStop));
    EXPECT_FALSE(Allows(allowed, before + "Hi!"));
    EXPECT_FALSE(Allows(allowed, before + kFinal + "Hi!" + kHarmonyStop)) << "one message";
    EXPECT_FALSE(Allows(allowed, before + kHarmonyStop + kHarmonyStop));
    EXPECT_FALSE(Allows(allowed, before + " to=functions.stop"));
  }
  EXPECT_FALSE(Allows(allowed, "<|channel|>commentary to=functions.start"));
  EXPECT_FALSE(Allows(allowed, "<|channel|>commentary to=functions.stop<|message|>"));
  required.reasoning_begun = true;
  EXPECT_TRUE(Allows(required, "Stop." + std::string(kNextMessage) + kHarmonyStop));
  EXPECT_FALSE(Allows(required, kHarmonyStop));
}

TEST(OutputGrammar, AllowsACallOfHarmonyOrTheSchema) {
  OutputRules rules = HarmonyRules(Calls::kAllowed);
  rules.structured = *ChoiceGrammar({"yes", "no"});
  EXPECT_TRUE(Allows(rules, kFinal + std::string("yes")));
  EXPECT_TRUE(Allows(rules, kHarmonyStop));
  EXPECT_FALSE(Allows(rules, kFinal + std::string("maybe")));
  EXPECT_FALSE(Allows(rules, kPreamble + std::string("yes")));
}

TEST(OutputGrammar, MakesValidCallsBehindMessages) {
  std::mt19937 random(4);
  const OutputRules rules = HarmonyRules(Calls::kRequired);
  for (int i = 0; i < 4; ++i) {
    Answer answer(GrammarOf(rules));
    ASSERT_TRUE(answer.Write(kAnalysis + std::string("a") + kNextMessage +
                             "<|channel|>commentary to=functions."));
    answer.Finish(random, 2000);
    ASSERT_TRUE(answer.ended()) << answer.text();
    const auto calls = CallsIn(rules, answer.text());
    ASSERT_EQ(calls.size(), 1u) << answer.text();
    ExpectValid(calls[0]);
  }
}

TEST(OutputGrammar, RequiresCallsBehindReasoning) {
  std::mt19937 random(3);
  OutputRules rules = Rules(*CallNotationOf("hermes"), Calls::kRequired);
  rules.reasoning = FindReasoningNotation("</think>");
  rules.reasoning_begun = true;
  Answer answer(GrammarOf(rules));
  ASSERT_TRUE(answer.Write("I could write <tool_call> {}</think>\n\n"));
  answer.Finish(random, 1000);
  ASSERT_TRUE(answer.ended());
  EXPECT_GE(CallsIn(rules, answer.text()).size(), 1u) << answer.text();
}

TEST(OutputGrammar, IsEmptyWithoutRules) {
  EXPECT_EQ(GrammarOf({.reasoning = FindReasoningNotation("</think>")}), "");
}

}  // namespace
}  // namespace penstock
