#include "model/grammar/pattern.h"

#include <gmock/gmock.h>

#include "model/grammar/pattern_grammar.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(Pattern, RefusesWhatNoGrammarExpresses) {
  const std::pair<std::string, std::string> cases[] = {
      {"(?!a)", "look-around"},      {"(?<=a)b", "look-around"}, {"(?i)a", "look-around or a flag"},
      {"(a)\\1", "backslash"},       {"\\bword", "backslash"},   {"\\p{L}", "backslash"},
      {"a{65}", "more than 64"},     {"a{3,2}", "reversed"},     {"a**", "with a backslash"},
      {"(a", "missing a `)`"},       {"a)", "not open"},         {"[a", "missing a `]`"},
      {"(a$)", "anchor inside"},     {"a^", "with a backslash"}, {"[b-a]", "without order"},
      {"[^\\s\\S]", "no character"}, {"a$b", "anchor"},          {"\\x4", "hexadecimal"},
      {"(.{64}){64}", "weighs"},     {"\xff", "UTF-8"},          {"[r-", "ends the pattern"},
  };
  for (const auto& [text, expected] : cases) {
    const auto parsed = Pattern::Parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(expected)) << text;
  }
}

TEST(Pattern, BoundsNestingAndSize) {
  EXPECT_TRUE(Pattern::Parse(std::string(32, '(') + "a" + std::string(32, ')')).ok());
  EXPECT_FALSE(Pattern::Parse(std::string(33, '(') + "a" + std::string(33, ')')).ok());
  EXPECT_FALSE(Pattern::Parse(std::string(4097, 'a')).ok());
}

TEST(Pattern, ReadsAnchorsOfAlternatives) {
  const auto parsed = Pattern::Parse("^a|b$|c");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->alternatives.size(), 3u);
  EXPECT_TRUE(parsed->alternatives[0].at_begin && !parsed->alternatives[0].at_end);
  EXPECT_TRUE(!parsed->alternatives[1].at_begin && parsed->alternatives[1].at_end);
  EXPECT_TRUE(!parsed->alternatives[2].at_begin && !parsed->alternatives[2].at_end);
}

TEST(CodepointSet, AddsAndRemoves) {
  const CodepointSet letters({{'a', 'f'}, {'d', 'z'}, {0xD800, 0xE000}});
  EXPECT_EQ(letters.ranges(), (std::vector<CodepointSet::Range>{{'a', 'z'}, {0xE000, 0xE000}}));
  EXPECT_EQ(letters.Without(CodepointSet({{'c', 'd'}, {'z', 0x10FFFF}})).ranges(),
            (std::vector<CodepointSet::Range>{{'a', 'b'}, {'e', 'y'}}));
  EXPECT_TRUE(CodepointSet::All().Without(CodepointSet::All()).empty());
  EXPECT_EQ(CodepointSet::All().size(), 0x10FFFFu - 0x800u);
}

TEST(PatternGrammar, EscapesWhatJsonEscapes) {
  const auto parsed = Pattern::Parse("^[\"\\n]$");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(JsonExpression(*parsed), R"((("" ("\U0000005C\U00000022" | "\U0000005Cn"))))");
  EXPECT_EQ(PlainExpression(*parsed), R"((("" [\U0000000A\U00000022])))");
}

}  // namespace
}  // namespace penstock
