#include "model/grammar/schema_grammar.h"

#include "model/grammar/grammar.h"
#include "model/grammar/schema_gate.h"

namespace penstock {
namespace {

// The rules of the strings, and the converted grammar with references to them in the place of their
// constants.
std::string WithStrings(std::string grammar, const GatedSchema& gated) {
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
    if (const size_t at = expression.find("BODY"); !rule.body.empty())
      expression.replace(at, 4, name + "_body");
    rules += fmt::format("{} ::= {}\n", name, expression);
    if (rule.body.empty()) continue;
    const std::string limit =
        rule.max_chars < 0 ? "" : fmt::format("[max_chars={}]", rule.max_chars);
    rules += fmt::format("{}_body{} ::= {}\n", name, limit, rule.body);
  }
  return grammar + rules;
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
