#include "model/grammar/grammar.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "model/grammar/schema_grammar.h"
#include "model/grammar/schema_strings.h"
#include "model/grammar/structured_output.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr uint32_t kMoreLogits = 40;  // than the tokenizer has tokens

const Tokenizer& Words() {
  static const auto tokenizer = *Tokenizer::Load(ModelFolder());
  return *tokenizer;
}
uint32_t Width() { return Words().vocab_size() + kMoreLogits; }
uint32_t Stop() { return *Words().eos_id(); }

std::unique_ptr<GrammarCompiler> MakeCompiler() {
  return *GrammarCompiler::Create(Words(), Width());
}

std::shared_ptr<const CompiledGrammar> Compiled(const absl::StatusOr<std::string>& grammar) {
  static const auto compiler = MakeCompiler();
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  auto compiled = compiler->Compile(*grammar);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *compiled;
}

std::unique_ptr<TokenMask> OpenMask(const std::shared_ptr<const CompiledGrammar>& grammar) {
  const uint32_t stop = Stop();
  return *TokenMask::Open(grammar, {&stop, 1});
}

std::vector<uint32_t> BitsOf(TokenMask& mask) {
  std::vector<uint32_t> bits(TokenMask::WordsFor(Width()));
  EXPECT_TRUE(mask.Fill(bits).ok());
  return bits;
}
bool Has(const std::vector<uint32_t>& bits, uint32_t id) {
  return (bits[id / 32] >> (id % 32) & 1) != 0;
}

struct Walk {
  std::vector<uint32_t> ids;
  std::vector<std::vector<uint32_t>> masks;
  std::string text;
};

uint32_t TokenOf(char byte) {
  for (uint32_t id = 0; id < Words().vocab_size(); ++id) {
    if (!Words().is_special(id) && Words().TokenBytes(id) == std::string(1, byte)) return id;
  }
  ADD_FAILURE() << "no token is the byte " << static_cast<int>(byte);
  return 0;
}

// Returns true if `text`, written byte by byte, is a whole answer.
bool IsAnswer(const std::shared_ptr<const CompiledGrammar>& grammar, const std::string& text) {
  const auto mask = OpenMask(grammar);
  for (const char byte : text) {
    const uint32_t id = TokenOf(byte);
    if (!Has(BitsOf(*mask), id)) return false;
    EXPECT_TRUE(mask->Accept(id).ok());
  }
  return Has(BitsOf(*mask), Stop());
}

// A random answer: any allowed token, and often the stop where it is allowed.
Walk RandomWalk(const std::shared_ptr<const CompiledGrammar>& grammar, std::mt19937& random,
                size_t tokens_max) {
  Walk walk;
  const auto mask = OpenMask(grammar);
  while (!mask->ended() && walk.ids.size() < tokens_max) {
    walk.masks.push_back(BitsOf(*mask));
    std::vector<uint32_t> allowed;
    for (uint32_t id = 0; id < Width(); ++id) {
      if (Has(walk.masks.back(), id)) allowed.push_back(id);
    }
    uint32_t id = allowed[random() % allowed.size()];
    if (Has(walk.masks.back(), Stop()) && random() % 2 == 0) id = Stop();
    EXPECT_TRUE(mask->Accept(id).ok()) << id;
    walk.ids.push_back(id);
    if (id != Stop()) walk.text += Words().TokenBytes(id);
  }
  return walk;
}

const char* const kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"]})",
    R"({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v"]}}})",
    R"({"type": "string", "pattern": "^[A-Z]{2}-\\d{1,4}$"})",
    R"({"anyOf": [{"type": "null"}, {"type": "string", "minLength": 1, "maxLength": 4}]})"};

TEST(TokenMask, ContinuesEquallyAfterReplayAndInAnotherCompiler) {
  std::mt19937 random(1);
  for (const char* schema : kSchemas) {
    const auto text = SchemaGrammar(schema, false);
    const auto grammar = Compiled(text);
    const auto again = *MakeCompiler()->Compile(*text);  // nothing in its cache
    const Walk walk = RandomWalk(grammar, random, 60);
    for (size_t at = 0; at < walk.masks.size(); ++at) {
      const auto replayed = OpenMask(at % 2 == 0 ? grammar : again);
      for (size_t i = 0; i < at; ++i) ASSERT_TRUE(replayed->Accept(walk.ids[i]).ok());
      ASSERT_EQ(BitsOf(*replayed), walk.masks[at]) << schema << " at " << at;
    }
  }
}

TEST(TokenMask, AllowsWhatItAcceptsAndNothingElse) {
  std::mt19937 random(2);
  for (const char* schema : kSchemas) {
    const auto grammar = Compiled(SchemaGrammar(schema, true));
    const Walk walk = RandomWalk(grammar, random, 30);
    for (size_t at = 0; at < walk.masks.size(); at += 3) {
      for (uint32_t id = 0; id < Words().vocab_size(); ++id) {
        if (random() % 16 != 0 && !Has(walk.masks[at], id)) continue;
        const auto mask = OpenMask(grammar);
        for (size_t i = 0; i < at; ++i) ASSERT_TRUE(mask->Accept(walk.ids[i]).ok());
        ASSERT_EQ(mask->Accept(id).ok(), Has(walk.masks[at], id))
            << schema << " at " << at << ", token " << id;
      }
    }
  }
}

TEST(TokenMask, EndedAnswersAreJson) {
  std::mt19937 random(3);
  int ended = 0;
  for (const char* schema : kSchemas) {
    const auto grammar = Compiled(SchemaGrammar(schema, false));
    for (int i = 0; i < 20; ++i) {
      const Walk walk = RandomWalk(grammar, random, 400);
      if (walk.ids.back() != Stop()) continue;
      ++ended;
      EXPECT_TRUE(nlohmann::json::accept(walk.text)) << walk.text;
    }
  }
  EXPECT_GT(ended, 60);
}

TEST(TokenMask, StopsOnlyWhereTheAnswerIsComplete) {
  const auto grammar = Compiled(ChoiceGrammar({"no", "nowhere"}));
  const auto mask = OpenMask(grammar);
  EXPECT_FALSE(Has(BitsOf(*mask), Stop()));
  const uint32_t n = *Words().FindToken("n"), o = *Words().FindToken("o");
  ASSERT_TRUE(mask->Accept(n).ok() && mask->Accept(o).ok());
  EXPECT_TRUE(Has(BitsOf(*mask), Stop()));
  EXPECT_TRUE(Has(BitsOf(*mask), *Words().FindToken("w")));
  EXPECT_FALSE(mask->Accept(n).ok());  // and nothing has changed
  EXPECT_TRUE(mask->Accept(Stop()).ok());
  EXPECT_TRUE(mask->ended());
  std::vector<uint32_t> bits(TokenMask::WordsFor(Width()));
  EXPECT_FALSE(mask->Fill(bits).ok());
}

// A stop token with a text is no part of an answer.
TEST(TokenMask, TakesNoStopForText) {
  const uint32_t letter = *Words().FindToken("a");
  const auto mask = *TokenMask::Open(Compiled(RegexGrammar("a|ba")), {&letter, 1});
  EXPECT_FALSE(Has(BitsOf(*mask), letter));
  ASSERT_TRUE(mask->Accept(*Words().FindToken("b")).ok());
  std::vector<uint32_t> bits(TokenMask::WordsFor(Width()));
  EXPECT_FALSE(mask->Fill(bits).ok());  // only an `a` could follow
}

TEST(TokenMask, NeverAllowsSpecialTokensAndUnusedLogits) {
  const auto mask = OpenMask(Compiled(RegexGrammar("[\\s\\S]*")));
  const std::vector<uint32_t> bits = BitsOf(*mask);
  EXPECT_TRUE(Has(bits, *Words().FindToken("a")));
  for (uint32_t id = 0; id < Width(); ++id) {
    const bool no_text = id >= Words().vocab_size() || Words().is_special(id);
    EXPECT_FALSE(no_text && id != Stop() && Has(bits, id)) << id;
  }
}

TEST(GrammarCompiler, RefusesWhatNothingSatisfies) {
  const auto compiled = MakeCompiler()->Compile("root ::= root \"a\"\n");
  EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(StructuredOutput, RefusesGrammarsThatAreNone) {
  for (const char* ebnf : {"", "root ::= (", "rule ::= \"a\"", "root ::= undefined",
                           "root ::= [a-z]{0,65}", "root ::= root \"a\""}) {
    EXPECT_EQ(EbnfGrammar(ebnf).status().code(), absl::StatusCode::kInvalidArgument) << ebnf;
  }
  EXPECT_TRUE(EbnfGrammar("root ::= \"{99}\" [{99}] [a-z]{2,64} # {99}\n").ok());
  EXPECT_FALSE(ChoiceGrammar({}).ok());
  EXPECT_FALSE(ChoiceGrammar({"a", ""}).ok());
  EXPECT_FALSE(RegexGrammar("(?=a)").ok());
}

TEST(SchemaStrings, CountCodePoints) {
  const auto two_to_three = Compiled(
      SchemaGrammar(R"({"type": "string", "minLength": 2, "maxLength": 3})", /*compact=*/true));
  for (const char* text : {R"("ab")", R"("abc")", "\"\u00e9\U0001F600\"", R"("\n\n\"")",
                           R"("\u00e9a")", R"("a\ud83d\uDE00")"}) {
    EXPECT_TRUE(IsAnswer(two_to_three, text)) << text;
  }
  for (const char* text : {R"("")", R"("a")", R"("abcd")", R"("\n")", R"("\ud83d\uDE00")",
                           R"("a\ud83d")", R"("a\ude00")", "\"a\nb\"", R"("ab)"}) {
    EXPECT_FALSE(IsAnswer(two_to_three, text)) << text;
  }
}

TEST(SchemaStrings, AreCountedByRulesOrByTheLibrary) {
  for (const int most : {CountedStrings::kMost, CountedStrings::kMost + 1}) {
    const auto grammar = Compiled(SchemaGrammar(
        fmt::format(R"({{"type": "array", "items": {{"type": "string", "maxLength": {}}}}})", most),
        true));
    for (const int length : {0, most - 1, most, most + 1}) {
      const std::string text = fmt::format("[\"{}\"]", std::string(length, 'x'));
      EXPECT_EQ(IsAnswer(grammar, text), length <= most) << length << " of " << most;
    }
  }
}

TEST(SchemaStrings, MayHaveOnlyALeastLength) {
  const auto grammar = Compiled(SchemaGrammar(R"({"type": "string", "minLength": 3})", true));
  EXPECT_FALSE(IsAnswer(grammar, R"("ab")"));
  EXPECT_TRUE(IsAnswer(grammar, R"("abc")"));
  EXPECT_TRUE(IsAnswer(grammar, '"' + std::string(200, 'x') + '"'));
}

}  // namespace
}  // namespace penstock
