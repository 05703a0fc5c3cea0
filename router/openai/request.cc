#include "router/openai/request.h"

#include <algorithm>

#include "router/api/http_fields.h"
#include "router/openai/chat_messages.h"
#include "router/openai/prompt_field.h"
#include "router/openai/request_fields.h"
#include "router/openai/sampling_fields.h"
#include "router/openai/structured_fields.h"
#include "router/openai/tool_fields.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;

// ---------------------------------------------------------------- chat

void ReadChatLogprobs(FieldReader& reader, OpenAiRequest& request, v1::OutputOptions& output) {
  request.logprobs = reader.Bool("logprobs").value_or(false);
  const auto top = reader.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !request.logprobs) {
    return reader.Note(BadField("top_logprobs", "may only be set with \"logprobs\": true"));
  }
  if (request.logprobs) output.set_top_logprobs(static_cast<uint32_t>(top.value_or(0)));
}

// ---------------------------------------------------------------- completions

void ReadCompletionFields(FieldReader& reader, OpenAiRequest& request, v1::OutputOptions& output) {
  if (const auto logprobs = reader.Integer("logprobs", 0, kMaxTopLogprobs)) {
    request.logprobs = true;
    output.set_top_logprobs(static_cast<uint32_t>(*logprobs));
  }
  output.set_echo(reader.Bool("echo").value_or(false));
}

// As transformers has it: true, false or "never".
v1::BeamSearch::EarlyStopping ReadEarlyStopping(FieldReader& reader) {
  const Json* value = reader.Any("early_stopping");
  if (value == nullptr || *value == false) return v1::BeamSearch::UNLIKELY;
  if (*value == true) return v1::BeamSearch::AT_ONCE;
  if (*value != "never") {
    reader.Note(BadField("early_stopping", "must be true, false or \"never\""));
  }
  return v1::BeamSearch::IMPOSSIBLE;
}

// As vLLM has it: `best_of`, or else `n`, is the number of beams.
void ReadBeams(FieldReader& reader, const OpenAiRequest& request, v1::SamplingParams& sampling) {
  const auto best_of = reader.Integer("best_of", 1, kMaxChoices);
  const auto penalty = reader.Number("length_penalty");
  const v1::BeamSearch::EarlyStopping early_stopping = ReadEarlyStopping(reader);
  if (!reader.Bool("use_beam_search").value_or(false)) {
    if (best_of) sampling.set_best_of(static_cast<uint32_t>(*best_of));
    if (early_stopping != v1::BeamSearch::UNLIKELY || penalty.value_or(1) != 1) {
      const char* name = penalty.value_or(1) != 1 ? "length_penalty" : "early_stopping";
      reader.Note(BadField(name, "may only be set with \"use_beam_search\": true"));
    }
    return;
  }
  if (request.stream) {
    return reader.Note(BadField("use_beam_search", "may not be set with \"stream\": true"));
  }
  v1::BeamSearch& beams = *sampling.mutable_beam_search();
  beams.set_width(best_of ? static_cast<uint32_t>(*best_of) : std::max(sampling.n(), 1u));
  if (penalty) beams.set_length_penalty(static_cast<float>(*penalty));
  beams.set_early_stopping(early_stopping);
}

// As vLLM has it.
void ReadPromptLogprobs(FieldReader& reader, OpenAiRequest& request, v1::OutputOptions& output) {
  const auto alternatives = reader.Integer("prompt_logprobs", 0, kMaxTopLogprobs);
  if (!alternatives) return;
  if (request.stream) {
    return reader.Note(BadField("prompt_logprobs", "may not be set with \"stream\": true"));
  }
  request.prompt_logprobs = true;
  output.set_prompt_logprobs(static_cast<uint32_t>(*alternatives));
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseChatRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  OpenAiRequest request{.chat = true};
  v1::GenerateRequest& generate = request.prompts.emplace_back();
  FieldReader reader(body, "");
  RefuseUnsupported(body, BodyKind::kChat, reader);
  ReadSharedFields(reader, generate);
  ReadCompletionOptions(reader, request, generate);
  ReadChatLogprobs(reader, request, *generate.mutable_output());
  ReadPromptLogprobs(reader, request, *generate.mutable_output());
  ReadBeams(reader, request, *generate.mutable_sampling());
  request.structured_field =
      ReadStructured(reader, text, FormatPlace::kResponseFormat, *generate.mutable_structured());
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(ReadMessages(body, *generate.mutable_chat()));
  RETURN_IF_ERROR(ReadTools(body, text, ToolForm::kNested, *generate.mutable_chat()));
  RETURN_IF_ERROR(ReadTemplateFields(body, *generate.mutable_chat()));
  ASSIGN_OR_RETURN(const v1::ReasoningUse reasoning, ReadReasoningUse(body));
  generate.set_reasoning(reasoning);
  return request;
}

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  OpenAiRequest request;
  v1::GenerateRequest shared;
  FieldReader reader(body, "");
  RefuseUnsupported(body, BodyKind::kCompletion, reader);
  ReadSharedFields(reader, shared);
  ReadCompletionOptions(reader, request, shared);
  ReadCompletionFields(reader, request, *shared.mutable_output());
  ReadPromptLogprobs(reader, request, *shared.mutable_output());
  ReadBeams(reader, request, *shared.mutable_sampling());
  request.structured_field =
      ReadStructured(reader, text, FormatPlace::kResponseFormat, *shared.mutable_structured());
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(
      request.prompts,
      ReadPromptField(body, {.name = "prompt", .max_prompts = kMaxPrompts, .shared = shared}));
  return request;
}

absl::StatusOr<v1::TokenizeRequest> ParseTokenizeRequest(const Json& body, std::string_view text) {
  RETURN_IF_ERROR(NeedObject(body));
  v1::TokenizeRequest request;
  FieldReader reader(body, "");
  if (const std::string* model = reader.String("model")) request.set_model(*model);
  request.set_add_special_tokens(reader.Bool("add_special_tokens").value_or(true));
  request.set_return_strings(reader.Bool("return_token_strs").value_or(false));
  if (reader.Any("messages") != nullptr) {
    // The template writes its own special tokens.
    request.set_add_special_tokens(reader.Bool("add_special_tokens").value_or(false));
    RETURN_IF_ERROR(ReadMessages(body, *request.mutable_chat()));
    RETURN_IF_ERROR(ReadTools(body, text, ToolForm::kNested, *request.mutable_chat()));
    RETURN_IF_ERROR(ReadTemplateFields(body, *request.mutable_chat()));
  } else if (const std::string* prompt = reader.String("prompt")) {
    request.set_text(*prompt);
  } else {
    reader.Note(BadField("prompt", "is needed, or messages"));
  }
  RETURN_IF_ERROR(reader.status());
  return request;
}

absl::StatusOr<v1::DetokenizeRequest> ParseDetokenizeRequest(const Json& body) {
  RETURN_IF_ERROR(NeedObject(body));
  v1::DetokenizeRequest request;
  FieldReader reader(body, "");
  if (const std::string* model = reader.String("model")) request.set_model(*model);
  const Json* tokens = reader.Array("tokens");
  RETURN_IF_ERROR(reader.status());
  if (tokens == nullptr) return BadField("tokens", "is needed: a list of token ids");
  if (tokens->size() > kMaxPromptTokens) {
    return BadField("tokens", "has {} token ids; the limit is {}", tokens->size(),
                    kMaxPromptTokens);
  }
  for (size_t i = 0; i < tokens->size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t id,
                     IntegerOf(fmt::format("tokens[{}]", i), (*tokens)[i], 0, UINT32_MAX));
    request.add_token_ids(static_cast<uint32_t>(id));
  }
  return request;
}

}  // namespace penstock
