#include "tests/e2e/grammar_oracle.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "model/checkpoint/model_config.h"
#include "router/request/structured.h"
#include "tests/support/must.h"

namespace penstock {
namespace {

class DirectConstraint final : public TokenConstraint {
 public:
  DirectConstraint(std::unique_ptr<TokenMask> mask, uint32_t vocab)
      : mask_(std::move(mask)), bits_(TokenMask::WordsFor(vocab)) {}

  void Observe(uint32_t token) override {
    const absl::Status accepted = mask_->Accept(token);
    if (!accepted.ok()) internal::CheckFailed(__FILE__, __LINE__, Message(accepted));
  }
  absl::StatusOr<std::span<const uint32_t>> Allowed() override {
    RETURN_IF_ERROR(mask_->Fill(bits_));
    return std::span<const uint32_t>(bits_);
  }

 private:
  const std::unique_ptr<TokenMask> mask_;
  std::vector<uint32_t> bits_;
};

class DirectSource final : public ConstraintSource {
 public:
  DirectSource(std::shared_ptr<const CompiledGrammar> grammar, std::vector<uint32_t> stops,
               uint32_t vocab)
      : grammar_(std::move(grammar)), stops_(std::move(stops)), vocab_(vocab) {}

  std::unique_ptr<TokenConstraint> Open() const override {
    return std::make_unique<DirectConstraint>(Must(TokenMask::Open(grammar_, stops_)), vocab_);
  }

 private:
  const std::shared_ptr<const CompiledGrammar> grammar_;
  const std::vector<uint32_t> stops_;
  const uint32_t vocab_;
};

std::vector<v1::StructuredOutput> Examples() {
  std::vector<v1::StructuredOutput> examples(6);
  examples[0].set_json_schema(
      R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "tags": {"type": "array",
          "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"]})");
  examples[1].set_json_object(true);
  examples[2].set_regex("[A-Z][a-z]{2,12}( [A-Z][a-z]{2,12}){1,3}\\.");
  *examples[3].mutable_choice()->add_texts() = "a river";
  *examples[3].mutable_choice()->add_texts() = "an old tree by the river";
  examples[4].set_grammar("root ::= term ([+*/-] term)*\nterm ::= [0-9]{1,5} | \"(\" root \")\"\n");
  examples[5].set_json_schema(
      R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": ["number", "null"]},
          "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v"]}}})");
  examples[5].set_compact(true);
  return examples;
}

}  // namespace

GrammarOracle::GrammarOracle(const std::string& model_folder, uint32_t vocab)
    : tokenizer_(Must(Tokenizer::Load(model_folder))),
      compiler_(Must(GrammarCompiler::Create(*tokenizer_, vocab))),
      stops_(Must(LoadModelConfig(model_folder)).eos_token_ids),
      vocab_(vocab) {}

void GrammarOracle::Constrain(TestRequest& request, const v1::StructuredOutput& structured) const {
  request.structured = structured;
  request.sampling.stop_token_ids = stops_;
  request.sampling.constraint = std::make_shared<DirectSource>(
      Must(compiler_->Compile(Must(GrammarOf(structured)))), stops_, vocab_);
}

void GrammarOracle::ConstrainSome(std::vector<TestRequest>& requests) const {
  const std::vector<v1::StructuredOutput> examples = Examples();
  for (size_t r = 0, e = 0; r < requests.size(); r += 3, ++e) {
    Constrain(requests[r], examples[e % examples.size()]);
    requests[r].tokens_max += 48;
  }
}

v1::StructuredOutput ManyNumbers(int least) {
  v1::StructuredOutput structured;
  structured.set_json_schema(fmt::format(
      R"({{"type": "array", "items": {{"type": "integer", "minimum": 0, "maximum": 99999}}, "minItems": {}}})",
      least));
  structured.set_compact(true);
  return structured;
}

}  // namespace penstock
