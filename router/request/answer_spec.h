#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/output/output_parser.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/request/embedding.h"

namespace penstock {

inline constexpr uint32_t kMaxChoices = 16;  // of a request

// The client's choices for the answer, checked and complete: every default is filled in.
struct AnswerSpec {
  // The workers get it as it is. max_tokens is 0 until FitToContext when the client set none.
  v1::SamplingSpec sampling;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool return_token_ids = false;
  bool return_logprobs = false;
  bool skip_special_tokens = true;
  bool echo = false;                        // the answer begins with the prompt
  std::optional<uint32_t> prompt_logprobs;  // alternatives of each token of the prompt
  bool prompt_only = false;                 // no token of the answer is wanted
  std::optional<EmbeddingSpec> embedding;   // of the prompt; set by TakeEmbedding
  uint32_t answers = 1;  // the choices that the client gets, the best of sampling.choices
  // Set by ShapeAnswer.
  OutputParts parts;
  v1::ReasoningUse reasoning = v1::REASONING_APART;
  bool show_markers = false;  // DetokenizerOptions.show_markers
  bool timing = false;
  bool explain = false;

  // True if the answer has log-probabilities of the prompt's tokens.
  bool scores_prompt() const { return prompt_logprobs || (echo && return_logprobs); }
  // The alternatives of each token of the prompt that the worker has to give.
  uint32_t prompt_alternatives() const {
    return std::max(prompt_logprobs.value_or(0), echo ? sampling.top_logprobs() : 0);
  }
  // True if the choices are compared with each other when all have ended.
  bool keeps_best() const { return answers < sampling.choices(); }
};

// The limits that requests are checked against.
struct ModelLimits {
  std::string name;  // the served name
  std::vector<std::string> aliases = {};
  uint32_t vocab = 0;          // token ids are below this
  uint32_t max_model_len = 0;  // tokens of prompt and answer together
  std::vector<uint32_t> eos_token_ids;
};

inline constexpr uint32_t kDefaultMaxTokens = 1024;
inline constexpr uint32_t kMostMaxTokens = 1u << 30;  // as asked; the context is shorter
inline constexpr size_t kMaxClientRequestIdBytes = 128;

// NOT_FOUND unless `model` is empty, the served name or an alias.
absl::Status CheckModelName(const std::string& model, const ModelLimits& limits);
// NOT_FOUND that names it and what is served, with kReasonModel.
absl::Status ModelNotFound(std::string_view model, std::string_view name,
                           const std::vector<std::string>& aliases);

// Checks every field but the prompt. Errors name the field, its value and the limit. `random_seed`
// is used when the client gives no seed. Pure.
absl::StatusOr<AnswerSpec> ValidateAnswer(const v1::GenerateRequest& request,
                                          const ModelLimits& limits, uint64_t random_seed);

// Sets max_tokens and min_tokens to what fits in the context behind the prompt. INVALID_ARGUMENT
// when there is no room for an answer. Pure.
// Also checks what the log-probabilities of the prompt need.
absl::Status FitToContext(size_t prompt_tokens, const ModelLimits& limits, AnswerSpec& answer);

}  // namespace penstock
