#include "router/request/structured.h"

#include <vector>

#include "model/grammar/schema_grammar.h"
#include "model/grammar/structured_output.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

absl::StatusOr<std::string> Converted(const v1::StructuredOutput& structured) {
  switch (structured.constraint_case()) {
    case v1::StructuredOutput::kJsonSchema:
      return SchemaGrammar(structured.json_schema(), structured.compact());
    case v1::StructuredOutput::kJsonObject:
      if (!structured.json_object()) return std::string();
      return SchemaGrammar(R"({"type":"object"})", structured.compact());
    case v1::StructuredOutput::kRegex:
      return RegexGrammar(structured.regex());
    case v1::StructuredOutput::kChoice: {
      const auto& texts = structured.choice().texts();
      return ChoiceGrammar(std::vector<std::string>(texts.begin(), texts.end()));
    }
    case v1::StructuredOutput::kGrammar:
      return EbnfGrammar(structured.grammar());
    case v1::StructuredOutput::CONSTRAINT_NOT_SET:
      break;
  }
  return std::string();
}

}  // namespace

absl::StatusOr<std::string> GrammarOf(const v1::StructuredOutput& structured) {
  auto grammar = Converted(structured);
  if (grammar.ok() && grammar->size() <= kMaxGrammarBytes) return grammar;
  if (grammar.ok()) {
    return BadField(kStructuredField, "becomes a grammar of {} bytes; the limit is {}",
                    grammar->size(), kMaxGrammarBytes);
  }
  return BadField(kStructuredField, "is not supported: {}",
                  ShownText(Message(grammar.status()), 512));
}

}  // namespace penstock
