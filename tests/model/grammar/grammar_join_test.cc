#include "model/grammar/grammar_join.h"

#include <gmock/gmock.h>

#include "model/grammar/grammar.h"
#include "model/grammar/schema_grammar.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(GrammarJoin, KeepsOneOfEqualRules) {
  GrammarJoin join;
  std::vector<std::string> roots = {
      join.Add("root ::= \"a\" list\nlist ::= \"[\" list \"]\" | \"x\"\n"),
      join.Add("root ::= \"b\" items\nitems ::= \"[\" items \"]\" | \"x\"\nunused ::= \"u\"\n"),
      join.Add("root ::= \"b\" other\nother ::= \"[\" other \"]\" | \"y\"\n")};
  const std::string rules = join.Rules(roots);
  EXPECT_EQ(rules,
            "j0 ::= \"a\" j3\nj1 ::= \"b\" j3\nj2 ::= \"b\" j4\n"
            "j3 ::= \"[\" j3 \"]\" | \"x\"\nj4 ::= \"[\" j4 \"]\" | \"y\"\n");
  EXPECT_EQ(roots, (std::vector<std::string>{"j0", "j1", "j2"}));
}

TEST(GrammarJoin, DoesNotReadNamesInTexts) {
  GrammarJoin join;
  std::vector<std::string> roots = {
      join.Add("root ::= \"a \\\" a\" [a\\]a] a\na[max_chars=5] ::= [a]*\n")};
  EXPECT_EQ(join.Rules(roots), "j0 ::= \"a \\\" a\" [a\\]a] j1\nj1[max_chars=5] ::= [a]*\n");
}

TEST(GrammarJoin, OfManySchemasIsSmall) {
  GrammarJoin join;
  std::vector<std::string> roots;
  size_t alone = 0;
  for (int i = 0; i < 128; ++i) {
    const auto grammar = SchemaGrammar(
        fmt::format(
            R"({{"type": "object", "properties": {{"field{}": {{"type": "string", "maxLength": 20}},
                       "count": {{"type": "integer", "minimum": 0, "maximum": 50}}, "any": {{}}}}}})",
            i),
        false);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    alone += grammar->size();
    roots.push_back(join.Add(*grammar));
  }
  std::string rules = join.Rules(roots);
  EXPECT_LT(rules.size() * 8, alone);
  rules += "root ::= " + roots.front();
  for (const std::string& root : roots) rules += " | " + root;
  EXPECT_TRUE(CheckGrammar(rules + "\n").ok()) << CheckGrammar(rules + "\n");
}

// A chain that is longer than the rounds of the search for equal rules.
TEST(GrammarJoin, KeepsLongChainsAsTheyAre) {
  std::string grammar = "root ::= \"a\" n0\n";
  for (int i = 0; i < 100; ++i) grammar += fmt::format("n{} ::= \"a\" n{}\n", i, i + 1);
  grammar += "n100 ::= \"b\"\n";
  GrammarJoin join;
  std::vector<std::string> roots = {join.Add(grammar), join.Add(grammar)};
  const std::string rules = join.Rules(roots);
  EXPECT_NE(roots[0], roots[1]);
  EXPECT_THAT(rules, HasSubstr("j203 ::= \"b\""));
}

}  // namespace
}  // namespace penstock
