#include "model/output/output_parser.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>

#include "tests/model/output/harmony_markers.h"

namespace penstock {
namespace {

using Kind = OutputPiece::Kind;

// Joins neighbours of one kind: how the text was divided no longer shows.
std::vector<OutputPiece> Joined(const std::vector<OutputPiece>& pieces) {
  std::vector<OutputPiece> joined;
  for (const OutputPiece& piece : pieces) {
    if (!joined.empty() && joined.back().kind == piece.kind && piece.kind != Kind::kCall) {
      joined.back().text += piece.text;
    } else {
      joined.push_back(piece);
    }
  }
  return joined;
}

// The parts of `text`, given in pieces that end at `cuts`.
std::vector<OutputPiece> PartsOf(const OutputParts& parts, const std::string& text,
                                 const std::vector<size_t>& cuts = {}) {
  OutputParser parser(parts);
  std::vector<OutputPiece> pieces;
  const auto add = [&](std::vector<OutputPiece> more) {
    pieces.insert(pieces.end(), more.begin(), more.end());
  };
  size_t begin = 0;
  for (const size_t cut : cuts) {
    add(parser.Feed(std::string_view(text).substr(begin, cut - begin)));
    begin = cut;
  }
  add(parser.Feed(std::string_view(text).substr(begin)));
  add(parser.Flush());
  return Joined(pieces);
}

bool EndsCharacter(const std::string& text, size_t at) {
  return at == text.size() || (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
}

// Every cut in two, every cut into characters, and random ones give the same parts.
void ExpectSameForAllCuts(const OutputParts& parts, const std::string& text) {
  const std::vector<OutputPiece> whole = PartsOf(parts, text);
  std::vector<size_t> all;
  for (size_t at = 1; at < text.size(); ++at) {
    if (!EndsCharacter(text, at)) continue;
    all.push_back(at);
    ASSERT_EQ(PartsOf(parts, text, {at}), whole) << text << " cut at " << at;
  }
  ASSERT_EQ(PartsOf(parts, text, all), whole) << text;
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    std::vector<size_t> some;
    for (const size_t at : all) {
      if (random() % 5 == 0) some.push_back(at);
    }
    ASSERT_EQ(PartsOf(parts, text, some), whole) << text;
  }
}

struct Call {
  std::string name;
  std::string arguments;
};

std::string Written(const CallNotation& notation, const std::vector<Call>& calls) {
  std::string text(notation.section_begin);
  for (const Call& call : calls) {
    if (&call != &calls.front()) text += notation.separator;
    text += std::string(notation.call_begin) + call.name + std::string(notation.name_end) +
            call.arguments + std::string(notation.call_end);
  }
  return text + std::string(notation.section_end);
}

const char* const kHostile[] = {
    "{}",
    R"({"city": "Paris"})",
    R"({"text": "a \"quoted\" </tool_call> ] } \\", "n": 12345678901234567890})",
    R"({"deep": {"a": [{"b": "}"}, [], {}]}, "emoji": "🐧 ｜"})",
    "{\n  \"line\": \"a\\nb\"\n}",
    R"({"json": "{\"name\": \"other\", \"arguments\": {}}"})",
};

OutputParts PartsWith(const CallNotation& notation) {
  return {.calls = &notation,
          .tools = {{.name = "get_weather", .texts = {"text"}}, {.name = "other"}}};
}

TEST(OutputParser, FindsCallsOfEveryNotation) {
  for (const CallNotation& notation : CallNotations()) {
    if (!notation.key_begin.empty()) continue;
    for (const char* arguments : kHostile) {
      std::vector<Call> calls = {{"get_weather", arguments}};
      if (notation.parallel) calls.push_back({"other", arguments});
      const std::string text = "Let me see.\n" + Written(notation, calls);
      std::vector<OutputPiece> expected = {{Kind::kContent, "Let me see.\n"}};
      for (const Call& call : calls) {
        expected.push_back({Kind::kCall, call.name});
        expected.push_back({Kind::kArguments, call.arguments});
      }
      EXPECT_EQ(PartsOf(PartsWith(notation), text), expected) << notation.name << text;
      ExpectSameForAllCuts(PartsWith(notation), text);
    }
  }
}

TEST(OutputParser, MakesJsonOfParameters) {
  for (const char* name : {"qwen3-coder", "glm-4.5"}) {
    const CallNotation& notation = *CallNotationOf(name);
    const auto parameter = [&](const std::string& key, const std::string& value) {
      return fmt::format("{}{}{}{}{}", std::string_view(notation.key_begin), key,
                         std::string_view(notation.key_end), value,
                         std::string_view(notation.value_end));
    };
    const std::string written = parameter("text", "a \"b\" \\ \n</tool_call>\n\t é") +
                                parameter("n", R"({"x": [1, "</"]})");
    const std::string text = "Now: " + Written(notation, {{"get_weather", written}, {"other", ""}});
    const std::vector<OutputPiece> expected = {
        {Kind::kContent, "Now: "},
        {Kind::kCall, "get_weather"},
        {Kind::kArguments,
         R"({"text": "a \"b\" \\ \n</tool_call>\n\u0009 é", "n": {"x": [1, "</"]}})"},
        {Kind::kCall, "other"},
        {Kind::kArguments, "{}"}};
    EXPECT_EQ(PartsOf(PartsWith(notation), text), expected);
    ExpectSameForAllCuts(PartsWith(notation), text);
  }
}

TEST(OutputParser, TakesAnythingElseForContent) {
  const CallNotation& hermes = *CallNotationOf("hermes");
  for (const std::string text :
       {"Plain text.", "a < b, <tool", "<tool_call>", "<tool_call>\n{\"name\": \"get_wea",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call> get_weather", " \n ", "｜▁ é <tool_ｃall>"}) {
    EXPECT_EQ(PartsOf(PartsWith(hermes), text), (std::vector<OutputPiece>{{Kind::kContent, text}}));
    ExpectSameForAllCuts(PartsWith(hermes), text);
  }
  const std::string long_name =
      "<tool_call>\n{\"name\": \"" + std::string(500, 'x') + "<tool_call>";
  ExpectSameForAllCuts(PartsWith(hermes), long_name);
  EXPECT_EQ(PartsOf(PartsWith(hermes), long_name),
            (std::vector<OutputPiece>{{Kind::kContent, long_name}}));
}

TEST(OutputParser, ReadsOnBehindWhatIsNoCall) {
  const CallNotation& llama = *CallNotationOf("llama3");
  const std::string text = R"({"name": "Rhine", "of": {"name": "other", "parameters": {"a": 1}}})";
  EXPECT_EQ(PartsOf(PartsWith(llama), text),
            (std::vector<OutputPiece>{{Kind::kContent, R"({"name": "Rhine", "of": )"},
                                      {Kind::kCall, "other"},
                                      {Kind::kArguments, R"({"a": 1})"},
                                      {Kind::kContent, "}"}}));
  ExpectSameForAllCuts(PartsWith(llama), text);
}

TEST(OutputParser, KeepsArgumentsThatWereCut) {
  const CallNotation& hermes = *CallNotationOf("hermes");
  const std::string text = Written(hermes, {{"other", R"({"text": "never end)"}});
  const std::string cut = text.substr(0, text.find(" end") + 4);
  EXPECT_EQ(PartsOf(PartsWith(hermes), cut),
            (std::vector<OutputPiece>{{Kind::kCall, "other"},
                                      {Kind::kArguments, R"({"text": "never end)"}}));
}

TEST(OutputParser, DropsWhiteSpaceAroundCalls) {
  const CallNotation& hermes = *CallNotationOf("hermes");
  const std::string text = "\n\n" + Written(hermes, {{"other", "{}"}}) + "\n";
  EXPECT_EQ(PartsOf(PartsWith(hermes), text),
            (std::vector<OutputPiece>{{Kind::kCall, "other"}, {Kind::kArguments, "{}"}}));
  ExpectSameForAllCuts(PartsWith(hermes), text);
}

TEST(OutputParser, SplitsReasoning) {
  for (const ReasoningNotation& notation : ReasoningNotations()) {
    const std::string begin(notation.begin), end(notation.end);
    for (const bool begun : {false, true}) {
      const OutputParts parts{.reasoning = &notation, .reasoning_begun = begun};
      const std::string text =
          fmt::format("{}\n\na\n\nb < c\n{}\n\nYes.\n", begun ? "" : "\n" + begin, end);
      EXPECT_EQ(PartsOf(parts, text), (std::vector<OutputPiece>{{Kind::kReasoning, "a\n\nb < c"},
                                                                {Kind::kContent, "Yes.\n"}}));
      ExpectSameForAllCuts(parts, text);
    }
    const OutputParts parts{.reasoning = &notation};
    const std::string later = fmt::format("No {}x{}", begin, notation.messages() ? "" : end);
    EXPECT_EQ(PartsOf(parts, later), (std::vector<OutputPiece>{{Kind::kContent, later}}));
    ExpectSameForAllCuts(parts, later);
    const std::string empty = fmt::format("{}\n\n{}\n\nYes.", begin, end);
    EXPECT_EQ(PartsOf(parts, empty), (std::vector<OutputPiece>{{Kind::kContent, "Yes."}}));
    const std::string cut = begin + "not yet";
    EXPECT_EQ(PartsOf(parts, cut), (std::vector<OutputPiece>{{Kind::kReasoning, "not yet"}}));
    ExpectSameForAllCuts(parts, fmt::format("{:80}{}x{}", "", begin, end));
  }
}

constexpr char kHarmonyCall[] =
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";

struct Harmony {
  std::string text;
  std::vector<OutputPiece> pieces;
};

TEST(OutputParser, SplitsTheChannelsOfHarmony) {
  const OutputParts parts{.reasoning = FindReasoningNotation(kAnalysis)};
  ASSERT_NE(parts.reasoning, nullptr);
  const std::string analysis = kAnalysis, final = kFinal, preamble = kPreamble;
  const Harmony answers[] = {
      {analysis + "The assistant\nmust greet." + kNextMessage + final + "Hi!",
       {{Kind::kReasoning, "The assistant\nmust greet."}, {Kind::kContent, "Hi!"}}},
      {final + "Hi!", {{Kind::kContent, "Hi!"}}},
      {"Hi!", {{Kind::kContent, "Hi!"}}},
      {preamble + "Hi!", {{Kind::kContent, "Hi!"}}},
      {analysis + kNextMessage + analysis + "a\n" + kNextMessage + analysis + "b" + kNextMessage +
           preamble + "First. " + kNextMessage + final + "\nLast.",
       {{Kind::kReasoning, "a\nb"}, {Kind::kContent, "First. \nLast."}}},
      {preamble + "First." + kNextMessage + analysis + "a" + kNextMessage + final + "Last.",
       {{Kind::kContent, "First."}, {Kind::kReasoning, "a"}, {Kind::kContent, "\nLast."}}},
      {preamble + " " + kNextMessage + final + "Hi!", {{Kind::kContent, "Hi!"}}},
      {analysis + "<|end|> is a token.", {{Kind::kReasoning, "<|end|> is a token."}}},
      {final.substr(0, 15), {}},  // cut by a limit of tokens
      {final.substr(0, 5), {{Kind::kContent, final.substr(0, 5)}}},
      {analysis + "a<|end|><|start|>", {{Kind::kReasoning, "a"}}},
      {analysis + "a<|end|>", {{Kind::kReasoning, "a"}}},
      {analysis + "a<|e", {{Kind::kReasoning, "a<|e"}}},
      {final + "a<|end|><|start|>assis", {{Kind::kContent, "a"}}},
      {analysis + "a" + kNextMessage + final.substr(0, 5), {{Kind::kReasoning, "a"}}},
      {kHarmonyCall + std::string("{}"), {{Kind::kContent, kHarmonyCall + std::string("{}")}}}};
  for (const auto& [text, pieces] : answers) {
    EXPECT_EQ(PartsOf(parts, text), pieces) << text;
    ExpectSameForAllCuts(parts, text);
  }
}

TEST(OutputParser, FindsCallsBehindMessages) {
  OutputParts parts = PartsWith(*CallNotationOf("harmony"));
  parts.reasoning = FindReasoningNotation(kAnalysis);
  const std::string analysis = kAnalysis, preamble = kPreamble, call = kHarmonyCall,
                    other = "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}";
  const OutputPiece name = {Kind::kCall, "get_weather"},
                    arguments = {Kind::kArguments, R"({"city": "<|end|>"})"};
  const Harmony answers[] = {
      {call + arguments.text, {name, arguments}},
      {analysis + "I need " + call + kNextMessage + call + arguments.text,
       {{Kind::kReasoning, "I need " + call}, name, arguments}},
      {analysis + "a" + kNextMessage + preamble + "Let me see.\n" + kNextMessage + call +
           arguments.text,
       {{Kind::kReasoning, "a"}, {Kind::kContent, "Let me see.\n"}, name, arguments}},
      {analysis + "a" + kNextMessage + call + R"({"city")",
       {{Kind::kReasoning, "a"}, name, {Kind::kArguments, R"({"city")"}}},
      {analysis + "a" + kNextMessage + call.substr(0, call.size() - 5), {{Kind::kReasoning, "a"}}},
      {analysis + "a" + kNextMessage + call.substr(0, call.find("weather")),
       {{Kind::kReasoning, "a"}}},
      {analysis + "a" + kNextMessage + other.substr(0, other.size() - 5),
       {{Kind::kReasoning, "a"}, {Kind::kContent, other.substr(0, other.size() - 5)}}},
      {analysis + "a" + kNextMessage + other, {{Kind::kReasoning, "a"}, {Kind::kContent, other}}}};
  for (const auto& [text, pieces] : answers) {
    EXPECT_EQ(PartsOf(parts, text), pieces) << text;
    ExpectSameForAllCuts(parts, text);
  }
}

TEST(OutputParser, TakesCallsInReasoningForReasoning) {
  const CallNotation& hermes = *CallNotationOf("hermes");
  OutputParts parts = PartsWith(hermes);
  parts.reasoning = &ReasoningNotations()[0];
  const std::string call = Written(hermes, {{"other", "{}"}});
  const std::string text = "<think>I could write " + call + "</think>\n\n" + call;
  EXPECT_EQ(PartsOf(parts, text),
            (std::vector<OutputPiece>{{Kind::kReasoning, "I could write " + call},
                                      {Kind::kCall, "other"},
                                      {Kind::kArguments, "{}"}}));
  ExpectSameForAllCuts(parts, text);
}

TEST(OutputParser, GivesTheSameForRandomTextsHoweverCut) {
  std::mt19937 random(11);
  for (const CallNotation& notation : CallNotations()) {
    OutputParts parts = PartsWith(notation);
    parts.reasoning = &ReasoningNotations()[random() % ReasoningNotations().size()];
    if (notation.name == "harmony") parts.reasoning = FindReasoningNotation(kAnalysis);
    const std::vector<std::string> bits = {std::string(notation.section_begin),
                                           std::string(notation.call_begin),
                                           std::string(notation.name_end),
                                           std::string(notation.call_end),
                                           std::string(notation.separator),
                                           std::string(notation.section_end),
                                           std::string(notation.key_begin),
                                           std::string(notation.key_end),
                                           std::string(notation.value_end),
                                           std::string(parts.reasoning->begin),
                                           std::string(parts.reasoning->end),
                                           kPreamble,
                                           "other",
                                           "{",
                                           "}",
                                           "\"",
                                           "\\",
                                           "\n",
                                           "text"};
    for (int i = 0; i < 100; ++i) {
      std::string text;
      for (int j = 0; j < 12; ++j) {
        const std::string& bit = bits[random() % bits.size()];
        const bool ascii = std::ranges::all_of(bit, [](char c) { return c >= 0; });
        text += ascii && random() % 4 == 0 ? bit.substr(0, random() % (bit.size() + 1)) : bit;
      }
      ExpectSameForAllCuts(parts, text);
    }
  }
}

}  // namespace
}  // namespace penstock
