#include "router/openai/request_fields.h"

#include <algorithm>
#include <array>
#include <string>

#include "router/api/error_parts.h"

namespace penstock {
namespace {

constexpr FieldUse kDone = FieldUse::kDone;
constexpr FieldUse kRefused = FieldUse::kRefused;
constexpr FieldUse kIgnored = FieldUse::kIgnored;

// Values that ask for nothing.
constexpr std::string_view kFalse = "[false]";
constexpr std::string_view kTrue = "[true]";
constexpr std::string_view kZero = "[0]";
constexpr std::string_view kOne = "[1]";
constexpr std::string_view kEmpty = R"([[], {}, ""])";
constexpr std::string_view kNoCall = R"(["none", "auto"])";

constexpr std::string_view kInternal = "is not taken from clients";
constexpr std::string_view kSayMaxTokens = "is not supported by this server; use max_tokens";
constexpr std::string_view kNotResponses = "is not supported by /v1/responses";
constexpr std::string_view kOfChats = "is for chats";
constexpr std::string_view kOfResponses = "is for /v1/responses";
constexpr std::string_view kSayMaxOutput = "is not taken by /v1/responses; use max_output_tokens";
constexpr std::string_view kNeedsState =
    "needs stored state, which this server does not keep; send the whole conversation";

// In the order of their names.
constexpr std::array kFields = {
    RequestField{"access_programs", kIgnored, kIgnored, kIgnored},
    RequestField{"add_generation_prompt", kDone, kIgnored, kRefused, kTrue},
    RequestField{
        "add_special_tokens", kRefused, kRefused, kRefused, kFalse,
        "is set by the endpoint: chats are encoded without special tokens, texts with them", kTrue},
    RequestField{"allowed_token_ids", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"audio", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"background", kRefused, kRefused, kRefused, kFalse, kNeedsState},
    RequestField{"background_options", kIgnored, kIgnored, kIgnored, "[]", "of background"},
    RequestField{"bad_words", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"best_of", kDone, kDone, kRefused, kOne, kNotResponses},
    RequestField{"blend_parts", kDone, kDone, kDone},
    RequestField{"blend_separator", kDone, kDone, kDone},
    RequestField{"bootstrap_host", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"bootstrap_port", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"bootstrap_room", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"cache_control", kDone, kDone, kDone},
    RequestField{"cache_prompt", kIgnored, kIgnored, kIgnored},
    RequestField{"cache_salt", kDone, kDone, kDone},
    RequestField{"chat_template", kRefused, kRefused, kRefused, "[]",
                 "is not taken from clients; the model's own is used"},
    RequestField{"chat_template_kwargs", kDone, kRefused, kDone, kEmpty, kOfChats},
    RequestField{"context_management", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"continue_final_message", kRefused, kRefused, kRefused, kFalse},
    RequestField{"conversation", kRefused, kRefused, kRefused, "[]", kNeedsState},
    RequestField{"custom_logit_processor", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"custom_params", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"detokenize", kRefused, kRefused, kRefused, kTrue},
    RequestField{"disable_any_whitespace", kDone, kDone, kDone},
    RequestField{"do_remote_decode", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"do_remote_prefill", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"do_sample", kRefused, kRefused, kRefused, kTrue,
                 "is not supported by this server; use temperature 0 for greedy answers"},
    RequestField{"documents", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"dry_multiplier", kRefused, kRefused, kRefused, kZero},
    RequestField{"dynatemp_range", kRefused, kRefused, kRefused, kZero},
    RequestField{"early_stopping", kDone, kDone, kRefused, kFalse, kNotResponses},
    RequestField{"ebnf", kDone, kDone, kDone},
    RequestField{"echo", kRefused, kDone, kRefused, kFalse, "is for completions"},
    RequestField{"enable_response_messages", kRefused, kRefused, kRefused, kFalse},
    RequestField{"frequency_penalty", kDone, kDone, kDone},
    RequestField{"function_call", kRefused, kRefused, kRefused, kNoCall},
    RequestField{"functions", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"grammar", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"guided_choice", kDone, kDone, kDone},
    RequestField{"guided_decoding_backend", kIgnored, kIgnored, kIgnored},
    RequestField{"guided_grammar", kDone, kDone, kDone},
    RequestField{"guided_json", kDone, kDone, kDone},
    RequestField{"guided_regex", kDone, kDone, kDone},
    RequestField{"guided_whitespace_pattern", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"id_slot", kIgnored, kIgnored, kIgnored},
    RequestField{"ignore_eos", kDone, kDone, kDone},
    RequestField{"image", kIgnored, kIgnored, kIgnored, "[]", "of images, which are refused"},
    RequestField{"include", kIgnored, kIgnored, kDone, "[]",
                 "message.output_text.logprobs is refused; the others cannot change an answer"},
    RequestField{"include_reasoning", kDone, kRefused, kDone, kTrue, kOfChats},
    RequestField{"include_stop_str_in_output", kDone, kDone, kDone},
    RequestField{"input", kRefused, kRefused, kDone, kEmpty, kOfResponses},
    RequestField{"instructions", kRefused, kRefused, kDone, kEmpty, kOfResponses},
    RequestField{"json_schema", kDone, kDone, kDone},
    RequestField{"keep_marker", kDone, kDone, kDone},
    RequestField{"keep_spans", kDone, kDone, kDone},
    RequestField{"kv_policy", kDone, kDone, kDone},
    RequestField{"kv_transfer_params", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"length_penalty", kDone, kDone, kRefused, kOne, kNotResponses},
    RequestField{"logit_bias", kDone, kDone, kDone},
    RequestField{"logits_processors", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"logprobs", kDone, kDone, kRefused, kFalse, kNotResponses},
    RequestField{"lora", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"lora_path", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"max_completion_tokens", kDone, kDone, kRefused, "[]", kSayMaxOutput},
    RequestField{"max_new_tokens", kRefused, kRefused, kRefused, "[]", kSayMaxTokens},
    RequestField{"max_output_tokens", kRefused, kRefused, kDone, "[]",
                 "is for /v1/responses; use max_tokens"},
    RequestField{"max_tokens", kDone, kDone, kRefused, "[]", kSayMaxOutput},
    RequestField{"max_tool_calls", kIgnored, kIgnored, kIgnored, "[]",
                 "counts calls of tools that the server runs; this server runs none"},
    RequestField{"messages", kDone, kRefused, kRefused, "[]", "is for /v1/chat/completions"},
    RequestField{"metadata", kIgnored, kIgnored, kDone},
    RequestField{"min_new_tokens", kRefused, kRefused, kRefused, kZero,
                 "is not supported by this server; use min_tokens"},
    RequestField{"min_p", kDone, kDone, kDone},
    RequestField{"min_tokens", kDone, kDone, kDone},
    RequestField{"mirostat", kRefused, kRefused, kRefused, kZero},
    RequestField{"mm_processor_kwargs", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"modalities", kRefused, kRefused, kRefused, R"([["text"]])",
                 "may only be [\"text\"] on this server"},
    RequestField{"model", kDone, kDone, kDone},
    RequestField{"moderation", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"n", kDone, kDone, kRefused, kOne,
                 "is not taken by /v1/responses: it gives one answer"},
    RequestField{"n_predict", kRefused, kRefused, kRefused, "[]", kSayMaxTokens},
    RequestField{"n_probs", kRefused, kRefused, kRefused, kZero,
                 "is not supported by this server; use logprobs"},
    RequestField{"no_repeat_ngram_size", kRefused, kRefused, kRefused, kZero},
    RequestField{"no_stop_trim", kRefused, kRefused, kRefused, kFalse,
                 "is not supported by this server; use include_stop_str_in_output"},
    RequestField{"num_beams", kRefused, kRefused, kRefused, kOne,
                 "is not supported by this server; use use_beam_search and best_of"},
    RequestField{"parallel_tool_calls", kDone, kIgnored, kDone},
    RequestField{"prediction", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"presence_penalty", kDone, kDone, kDone},
    RequestField{"previous_input_messages", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"previous_response_id", kRefused, kRefused, kRefused, "[]", kNeedsState},
    RequestField{"priority", kIgnored, kIgnored, kIgnored, "[]",
                 "order of placement only; gRPC has it"},
    RequestField{"prompt", kRefused, kDone, kRefused, "[]", "is for /v1/completions"},
    RequestField{"prompt_cache_key", kDone, kDone, kDone},
    RequestField{"prompt_cache_options", kIgnored, kIgnored, kIgnored},
    RequestField{"prompt_cache_retention", kIgnored, kIgnored, kIgnored},
    RequestField{"prompt_logprobs", kDone, kDone, kRefused, "[]", kNotResponses},
    RequestField{"random_seed", kRefused, kRefused, kRefused, "[]",
                 "is not supported by this server; use seed"},
    RequestField{"reasoning", kRefused, kRefused, kDone, kEmpty,
                 "is for /v1/responses; chats have reasoning_effort"},
    RequestField{"reasoning_effort", kDone, kRefused, kRefused, R"(["none"])",
                 "is for chats; responses have reasoning.effort"},
    RequestField{"regex", kDone, kDone, kDone},
    RequestField{"remote_block_ids", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_engine_id", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_host", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_port", kRefused, kRefused, kRefused, "[]", kInternal},
    RequestField{"repeat_penalty", kRefused, kRefused, kRefused, kOne,
                 "is not supported by this server; use repetition_penalty"},
    RequestField{"repetition_penalty", kDone, kDone, kDone},
    RequestField{"request_id", kIgnored, kIgnored, kIgnored, "[]",
                 "the header X-Request-Id is used"},
    RequestField{"response_format", kDone, kDone, kRefused, R"([{"type": "text"}])",
                 "is not taken by /v1/responses; use text.format"},
    RequestField{"return_full_text", kRefused, kRefused, kRefused, kFalse},
    RequestField{"return_hidden_states", kRefused, kRefused, kRefused, kFalse},
    RequestField{"return_token_ids", kDone, kDone, kRefused, kFalse, kNotResponses},
    RequestField{"return_tokens_as_token_ids", kRefused, kRefused, kRefused, kFalse},
    RequestField{"rid", kIgnored, kIgnored, kIgnored, "[]", "the header X-Request-Id is used"},
    RequestField{"safety_identifier", kIgnored, kIgnored, kIgnored},
    RequestField{"samplers", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"seed", kDone, kDone, kDone},
    RequestField{"separate_reasoning", kDone, kRefused, kDone, kFalse, kOfChats},
    RequestField{"service_tier", kIgnored, kIgnored, kIgnored},
    RequestField{"session_params", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"skip_special_tokens", kDone, kDone, kDone},
    RequestField{"spaces_between_special_tokens", kRefused, kRefused, kRefused, kTrue},
    RequestField{"stop", kDone, kDone, kDone},
    RequestField{"stop_regex", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"stop_token_ids", kDone, kDone, kDone},
    RequestField{"store", kIgnored, kIgnored, kIgnored, "[]",
                 "nothing is stored; responses say `store` false"},
    RequestField{"stream", kDone, kDone, kDone},
    RequestField{"stream_options", kDone, kDone, kIgnored},
    RequestField{"stream_reasoning", kIgnored, kIgnored, kIgnored},
    RequestField{"structural_tag", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"structured_outputs", kDone, kDone, kDone},
    RequestField{"suffix", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"temperature", kDone, kDone, kDone},
    RequestField{"text", kRefused, kRefused, kDone, kEmpty, kOfResponses},
    RequestField{"tfs_z", kRefused, kRefused, kRefused, kOne},
    RequestField{"thinking", kRefused, kRefused, kRefused, R"([{"type": "disabled"}])"},
    RequestField{"thinking_token_budget", kRefused, kRefused, kRefused, "[]"},
    RequestField{"tool_choice", kDone, kRefused, kDone, kNoCall, kOfChats},
    RequestField{"tools", kDone, kRefused, kDone, kEmpty, kOfChats},
    RequestField{"top_a", kRefused, kRefused, kRefused, kZero},
    RequestField{"top_k", kDone, kDone, kDone},
    RequestField{"top_logprobs", kDone, kRefused, kRefused, kZero,
                 "is for chats; completions have logprobs"},
    RequestField{"top_p", kDone, kDone, kDone},
    RequestField{"truncate", kRefused, kRefused, kRefused, "[]"},
    RequestField{"truncate_prompt_tokens", kRefused, kRefused, kRefused, "[]"},
    RequestField{"truncation", kIgnored, kIgnored, kIgnored, "[]",
                 "an input that does not fit is refused"},
    RequestField{"typical_p", kRefused, kRefused, kRefused, kOne},
    RequestField{"use_beam_search", kDone, kDone, kRefused, kFalse, kNotResponses},
    RequestField{"user", kIgnored, kIgnored, kIgnored},
    RequestField{"verbosity", kRefused, kRefused, kRefused, R"(["medium"])"},
    RequestField{"vllm_xargs", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"watermark", kRefused, kRefused, kRefused, kFalse},
    RequestField{"web_search_options", kRefused, kRefused, kRefused, "[]"},
    RequestField{"whitespace_pattern", kRefused, kRefused, kRefused, kEmpty},
    RequestField{"xtc_probability", kRefused, kRefused, kRefused, kZero},
};

bool AsksForNothing(const Json& value, std::string_view neutral) {
  if (value.is_null()) return true;
  const Json values = Json::parse(neutral);
  return std::ranges::find(values, value) != values.end();
}

}  // namespace

std::span<const RequestField> RequestFields() { return kFields; }

FieldUse UseOf(const RequestField& field, BodyKind kind) {
  switch (kind) {
    case BodyKind::kChat:
      return field.chat;
    case BodyKind::kCompletion:
      return field.completion;
    case BodyKind::kResponse:
      return field.response;
  }
  return kRefused;
}

std::string_view NeutralOf(const RequestField& field, BodyKind kind) {
  return kind == BodyKind::kCompletion ? field.neutral_completion : field.neutral;
}

void RefuseUnsupported(const Json& body, BodyKind kind, FieldReader& reader) {
  for (const RequestField& field : kFields) {
    if (UseOf(field, kind) != kRefused) continue;
    const auto found = body.find(field.name);
    if (found == body.end()) continue;
    if (AsksForNothing(*found, NeutralOf(field, kind))) continue;
    const std::string_view why =
        field.note.empty() ? "is not supported by this server" : field.note;
    reader.Note(UnsupportedField(field.name, why));
  }
}

}  // namespace penstock
