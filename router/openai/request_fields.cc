#include "router/openai/request_fields.h"

#include <algorithm>
#include <array>
#include <string>

#include "router/request/error_detail.h"

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

// In the order of their names.
constexpr std::array kFields = {
    RequestField{"add_generation_prompt", kDone, kIgnored},
    RequestField{
        "add_special_tokens", kRefused, kRefused, kFalse,
        "is set by the endpoint: chats are encoded without special tokens, texts with them", kTrue},
    RequestField{"allowed_token_ids", kRefused, kRefused, kEmpty},
    RequestField{"audio", kRefused, kRefused, kEmpty},
    RequestField{"bad_words", kRefused, kRefused, kEmpty},
    RequestField{"best_of", kRefused, kDone, kOne, "completions: only the value of n"},
    RequestField{"bootstrap_host", kRefused, kRefused, "[]", kInternal},
    RequestField{"bootstrap_port", kRefused, kRefused, "[]", kInternal},
    RequestField{"bootstrap_room", kRefused, kRefused, "[]", kInternal},
    RequestField{"cache_control", kDone, kDone},
    RequestField{"cache_prompt", kIgnored, kIgnored},
    RequestField{"cache_salt", kDone, kDone},
    RequestField{"chat_template", kRefused, kRefused, "[]",
                 "is not taken from clients; the model's own is used"},
    RequestField{"chat_template_kwargs", kDone, kRefused, kEmpty, "is for chats"},
    RequestField{"continue_final_message", kRefused, kRefused, kFalse},
    RequestField{"custom_logit_processor", kRefused, kRefused, kEmpty},
    RequestField{"custom_params", kRefused, kRefused, kEmpty},
    RequestField{"detokenize", kRefused, kRefused, kTrue},
    RequestField{"disable_any_whitespace", kDone, kDone},
    RequestField{"do_remote_decode", kRefused, kRefused, "[]", kInternal},
    RequestField{"do_remote_prefill", kRefused, kRefused, "[]", kInternal},
    RequestField{"do_sample", kRefused, kRefused, kTrue,
                 "is not supported by this server; use temperature 0 for greedy answers"},
    RequestField{"documents", kRefused, kRefused, kEmpty},
    RequestField{"dry_multiplier", kRefused, kRefused, kZero},
    RequestField{"dynatemp_range", kRefused, kRefused, kZero},
    RequestField{"early_stopping", kRefused, kRefused, kFalse},
    RequestField{"ebnf", kDone, kDone},
    RequestField{"echo", kRefused, kDone, kFalse, "is for completions"},
    RequestField{"frequency_penalty", kDone, kDone},
    RequestField{"function_call", kRefused, kRefused, kNoCall},
    RequestField{"functions", kRefused, kRefused, kEmpty},
    RequestField{"grammar", kRefused, kRefused, kEmpty},
    RequestField{"guided_choice", kDone, kDone},
    RequestField{"guided_decoding_backend", kIgnored, kIgnored},
    RequestField{"guided_grammar", kDone, kDone},
    RequestField{"guided_json", kDone, kDone},
    RequestField{"guided_regex", kDone, kDone},
    RequestField{"guided_whitespace_pattern", kRefused, kRefused, kEmpty},
    RequestField{"id_slot", kIgnored, kIgnored},
    RequestField{"ignore_eos", kDone, kDone},
    RequestField{"include_reasoning", kDone, kRefused, kTrue, "is for chats"},
    RequestField{"include_stop_str_in_output", kDone, kDone},
    RequestField{"json_schema", kDone, kDone},
    RequestField{"kv_policy", kDone, kDone},
    RequestField{"kv_transfer_params", kRefused, kRefused, "[]", kInternal},
    RequestField{"length_penalty", kRefused, kRefused, kOne},
    RequestField{"logit_bias", kDone, kDone},
    RequestField{"logits_processors", kRefused, kRefused, kEmpty},
    RequestField{"logprobs", kDone, kDone},
    RequestField{"lora", kRefused, kRefused, kEmpty},
    RequestField{"lora_path", kRefused, kRefused, kEmpty},
    RequestField{"max_completion_tokens", kDone, kDone},
    RequestField{"max_new_tokens", kRefused, kRefused, "[]", kSayMaxTokens},
    RequestField{"max_tokens", kDone, kDone},
    RequestField{"messages", kDone, kRefused, "[]",
                 "is for /v1/chat/completions; this path takes prompt"},
    RequestField{"metadata", kIgnored, kIgnored},
    RequestField{"min_new_tokens", kRefused, kRefused, kZero,
                 "is not supported by this server; use min_tokens"},
    RequestField{"min_p", kDone, kDone},
    RequestField{"min_tokens", kDone, kDone},
    RequestField{"mirostat", kRefused, kRefused, kZero},
    RequestField{"mm_processor_kwargs", kRefused, kRefused, kEmpty},
    RequestField{"modalities", kRefused, kRefused, R"([["text"]])",
                 "may only be [\"text\"] on this server"},
    RequestField{"model", kDone, kDone},
    RequestField{"n", kDone, kDone},
    RequestField{"n_predict", kRefused, kRefused, "[]", kSayMaxTokens},
    RequestField{"n_probs", kRefused, kRefused, kZero,
                 "is not supported by this server; use logprobs"},
    RequestField{"no_repeat_ngram_size", kRefused, kRefused, kZero},
    RequestField{"no_stop_trim", kRefused, kRefused, kFalse,
                 "is not supported by this server; use include_stop_str_in_output"},
    RequestField{"num_beams", kRefused, kRefused, kOne},
    RequestField{"parallel_tool_calls", kDone, kIgnored},
    RequestField{"prediction", kRefused, kRefused, kEmpty},
    RequestField{"presence_penalty", kDone, kDone},
    RequestField{"priority", kIgnored, kIgnored, "[]", "order of placement only; gRPC has it"},
    RequestField{"prompt", kRefused, kDone, "[]",
                 "is for /v1/completions; this path takes messages"},
    RequestField{"prompt_cache_key", kDone, kDone},
    RequestField{"prompt_cache_retention", kIgnored, kIgnored},
    RequestField{"prompt_logprobs", kRefused, kRefused, "[]"},
    RequestField{"random_seed", kRefused, kRefused, "[]",
                 "is not supported by this server; use seed"},
    RequestField{"reasoning", kRefused, kRefused, kEmpty},
    RequestField{"reasoning_effort", kDone, kRefused, R"(["none"])", "is for chats"},
    RequestField{"regex", kDone, kDone},
    RequestField{"remote_block_ids", kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_engine_id", kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_host", kRefused, kRefused, "[]", kInternal},
    RequestField{"remote_port", kRefused, kRefused, "[]", kInternal},
    RequestField{"repeat_penalty", kRefused, kRefused, kOne,
                 "is not supported by this server; use repetition_penalty"},
    RequestField{"repetition_penalty", kDone, kDone},
    RequestField{"request_id", kIgnored, kIgnored, "[]", "the header X-Request-Id is used"},
    RequestField{"response_format", kDone, kDone, "[]", "text, json_object and json_schema"},
    RequestField{"return_full_text", kRefused, kRefused, kFalse},
    RequestField{"return_hidden_states", kRefused, kRefused, kFalse},
    RequestField{"return_token_ids", kDone, kDone},
    RequestField{"return_tokens_as_token_ids", kRefused, kRefused, kFalse},
    RequestField{"rid", kIgnored, kIgnored, "[]", "the header X-Request-Id is used"},
    RequestField{"safety_identifier", kIgnored, kIgnored},
    RequestField{"samplers", kRefused, kRefused, kEmpty},
    RequestField{"seed", kDone, kDone},
    RequestField{"separate_reasoning", kDone, kRefused, kFalse, "is for chats"},
    RequestField{"service_tier", kIgnored, kIgnored},
    RequestField{"session_params", kRefused, kRefused, kEmpty},
    RequestField{"skip_special_tokens", kDone, kDone},
    RequestField{"spaces_between_special_tokens", kRefused, kRefused, kTrue},
    RequestField{"stop", kDone, kDone},
    RequestField{"stop_regex", kRefused, kRefused, kEmpty},
    RequestField{"stop_token_ids", kDone, kDone},
    RequestField{"store", kIgnored, kIgnored},
    RequestField{"stream", kDone, kDone},
    RequestField{"stream_options", kDone, kDone},
    RequestField{"stream_reasoning", kIgnored, kIgnored},
    RequestField{"structural_tag", kRefused, kRefused, kEmpty},
    RequestField{"structured_outputs", kDone, kDone},
    RequestField{"suffix", kRefused, kRefused, kEmpty},
    RequestField{"temperature", kDone, kDone},
    RequestField{"tfs_z", kRefused, kRefused, kOne},
    RequestField{"thinking", kRefused, kRefused, R"([{"type": "disabled"}])"},
    RequestField{"thinking_token_budget", kRefused, kRefused, "[]"},
    RequestField{"tool_choice", kDone, kRefused, kNoCall, "is for chats"},
    RequestField{"tools", kDone, kRefused, kEmpty, "is for chats"},
    RequestField{"top_a", kRefused, kRefused, kZero},
    RequestField{"top_k", kDone, kDone},
    RequestField{"top_logprobs", kDone, kRefused, "[]", "is for chats; use logprobs"},
    RequestField{"top_p", kDone, kDone},
    RequestField{"truncate", kRefused, kRefused, "[]"},
    RequestField{"truncate_prompt_tokens", kRefused, kRefused, "[]"},
    RequestField{"typical_p", kRefused, kRefused, kOne},
    RequestField{"use_beam_search", kRefused, kRefused, kFalse},
    RequestField{"user", kIgnored, kIgnored},
    RequestField{"verbosity", kRefused, kRefused, R"(["medium"])"},
    RequestField{"vllm_xargs", kRefused, kRefused, kEmpty},
    RequestField{"watermark", kRefused, kRefused, kFalse},
    RequestField{"web_search_options", kRefused, kRefused, "[]"},
    RequestField{"whitespace_pattern", kRefused, kRefused, kEmpty},
    RequestField{"xtc_probability", kRefused, kRefused, kZero},
};

bool AsksForNothing(const Json& value, std::string_view neutral) {
  if (value.is_null()) return true;
  const Json values = Json::parse(neutral);
  return std::ranges::find(values, value) != values.end();
}

}  // namespace

std::span<const RequestField> RequestFields() { return kFields; }

void RefuseUnsupported(const Json& body, BodyKind kind, FieldReader& reader) {
  for (const RequestField& field : kFields) {
    const bool chat = kind == BodyKind::kChat;
    if ((chat ? field.chat : field.completion) != kRefused) continue;
    const auto found = body.find(field.name);
    if (found == body.end()) continue;
    if (AsksForNothing(*found, chat ? field.neutral : field.neutral_completion)) continue;
    const std::string_view why =
        field.note.empty() ? "is not supported by this server" : field.note;
    reader.Note(WithDetail(BadField(std::string(field.name), "{}", why),
                           {.reason = "unsupported_parameter"}));
  }
}

}  // namespace penstock
