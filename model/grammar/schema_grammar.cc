#include "model/grammar/schema_grammar.h"

#include "model/grammar/grammar.h"
#include "model/grammar/pattern_grammar.h"
#include "model/grammar/schema_gate.h"
#include "model/grammar/schema_strings.h"

namespace penstock {
namespace {

// Returns the expression of a string longer than CountedStrings::kMost, whose characters the
// library counts. It counts an escape as several characters, JSON Schema as one. So a string with a
// least and a greatest length has no escapes.
std::string LongString(const std::string& name, const GatedSchema::StringRule& rule,
                       std::string& rules) {
  const std::string character =
      "(" + JsonCharacter(/*escapes=*/rule.least == 0, /*units=*/rule.least == 0) + ")";
  rules +=
      fmt::format("{}_body[max_chars={}] ::= {}{{{},}}\n", name, rule.most, character, rule.least);
  return fmt::format(R"("\"" {}_body "\"")", name);
}

// The converted grammar with the rules of the strings, and with references to them in the place of
// their constants.
std::string WithStrings(std::string grammar, const GatedSchema& gated) {
  CountedStrings counted(gated.mark + "_chars");
  std::string rules;
  for (size_t i = 0; i < gated.strings.size(); ++i) {
    const GatedSchema::StringRule& rule = gated.strings[i];
    const std::string name = fmt::format("{}_string_{}", gated.mark, i);
    const std::string constant = fmt::format("\\\"{}{}\\\"", gated.mark, i);
    for (size_t at = grammar.find(constant); at != std::string::npos;
         at = grammar.find(constant, at)) {
      grammar.replace(at, constant.size(), fmt::format("\" {} \"", name));
      at += name.size();
    }
    std::string expression = rule.expression;
    if (expression.empty()) {
      expression = rule.most > CountedStrings::kMost
                       ? LongString(name, rule, rules)
                       : R"("\"" )" + counted.RuleOf(rule.least, rule.most);
    }
    rules += fmt::format("{} ::= {}\n", name, expression);
  }
  return grammar + counted.rules() + rules;
}

}  // namespace

absl::StatusOr<std::string> SchemaGrammar(std::string_view schema, bool compact) {
  ASSIGN_OR_RETURN(const GatedSchema gated, GateSchema(schema));
  ASSIGN_OR_RETURN(std::string grammar, ConvertSchema(gated.text, compact));
  grammar = WithStrings(std::move(grammar), gated);
  RETURN_IF_ERROR(CheckGrammar(grammar));
  return grammar;
}

}  // namespace penstock
