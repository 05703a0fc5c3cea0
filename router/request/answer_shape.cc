#include "router/request/answer_shape.h"

#include <algorithm>
#include <utility>

#include "router/request/error_detail.h"
#include "router/request/structured.h"
#include "router/request/tools.h"

namespace penstock {
namespace {

constexpr size_t kTailTokens = 16;  // enough for a marker and the line breaks behind it

// The end of the prompt, without white space.
std::string TailOf(const ServedModel& model, std::span<const uint32_t> prompt) {
  const size_t count = std::min(prompt.size(), kTailTokens);
  std::string tail = model.tokenizer->Decode(prompt.last(count), /*skip_special_tokens=*/false);
  tail.erase(tail.find_last_not_of(" \n\r\t") + 1);
  return tail;
}

// A prompt that ends with the marker of a beginning is continued with reasoning. One that ends with
// that of an end, or with what begins content, has turned reasoning off. Otherwise the model
// decides.
void AddReasoning(const ServedModel& model, std::span<const uint32_t> prompt, OutputRules& rules) {
  const ReasoningNotation* notation = model.output.reasoning;
  if (notation == nullptr) return;
  const std::string tail = TailOf(model, prompt);
  const auto ends = [&](std::string_view marker) { return tail.ends_with(marker); };
  if (notation->messages() ? std::ranges::any_of(notation->content_begins, ends)
                           : ends(notation->end)) {
    return;
  }
  rules.reasoning = notation;
  rules.reasoning_begun = ends(notation->begin);
}

// A grammar says where the answer ends, whatever ignore_eos says.
absl::Status EnsureStops(const v1::GenerateRequest& request, const ServedModel& model,
                         v1::SamplingSpec& spec) {
  if (spec.grammar().empty()) return absl::OkStatus();
  if (request.stop().ignore_eos() && request.structured().constraint_case() == 0) {
    for (const uint32_t id : model.eos_token_ids) spec.add_stop_token_ids(id);
  }
  if (!spec.stop_token_ids().empty()) return absl::OkStatus();
  return BadField(request.chat().tools().empty() ? kStructuredField : kToolsField,
                  "needs a token that ends the answer, and {} has none", model.name);
}

}  // namespace

absl::Status ShapeAnswer(const v1::GenerateRequest& request, const ServedModel& model,
                         std::span<const uint32_t> prompt, AnswerSpec& answer) {
  v1::SamplingSpec& spec = answer.sampling;
  if (!request.has_chat()) {
    answer.show_markers = !spec.grammar().empty();
    return absl::OkStatus();
  }
  OutputRules rules{.structured = spec.grammar()};
  AddReasoning(model, prompt, rules);
  RETURN_IF_ERROR(AddToolRules(request.chat(), model, rules));
  const bool plain = rules.calls == OutputRules::Calls::kNone && rules.reasoning == nullptr;
  if (!plain) {
    auto grammar = OutputGrammar(rules);
    if (!grammar.ok()) {
      return BadField(request.chat().tools().empty() ? kStructuredField : kToolsField, "{}",
                      Message(grammar.status()));
    }
    spec.set_grammar(*std::move(grammar));
    RETURN_IF_ERROR(EnsureStops(request, model, spec));
  }
  answer.reasoning = request.reasoning();
  const bool reasoning_apart = request.reasoning() != v1::REASONING_IN_TEXT;
  answer.parts = {.calls = rules.tools.empty() ? nullptr : rules.notation,
                  .reasoning = reasoning_apart ? rules.reasoning : nullptr,
                  .reasoning_begun = rules.reasoning_begun};
  for (const CallableTool& tool : rules.tools) {
    answer.parts.tools.push_back({.name = tool.name, .texts = tool.texts});
  }
  answer.show_markers = !spec.grammar().empty() || rules.reasoning != nullptr;
  return absl::OkStatus();
}

}  // namespace penstock
