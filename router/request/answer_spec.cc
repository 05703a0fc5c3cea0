#include "router/request/answer_spec.h"

#include <algorithm>
#include <cmath>

#include "model/tokenizer/stop_matcher.h"
#include "router/request/error_detail.h"
#include "router/request/structured.h"

namespace penstock {
namespace {

constexpr int kMaxLogitBias = 1024;
constexpr int kMaxStopTokenIds = 64;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kMaxBeams = 8;
// Log-probabilities of a prompt: they reach a gRPC client in one message, of up to 4 MiB.
constexpr uint64_t kMaxPromptLogprobs = 65'536;

struct Range {
  float min = 0;
  float max = 0;
  bool without_min = false;
  bool without_max = false;
};

absl::Status CheckRange(std::string_view field, float value, Range range) {
  // Written so that a NaN fails.
  const bool above = range.without_min ? value > range.min : value >= range.min;
  const bool below = range.without_max ? value < range.max : value <= range.max;
  if (above && below) return absl::OkStatus();
  return BadField(field, "is {}; it must be in {}{}, {}{}", value, range.without_min ? "(" : "[",
                  range.min, range.max, range.without_max ? ")" : "]");
}

absl::Status CheckTokenId(std::string_view field, uint32_t id, const ModelLimits& limits) {
  if (id < limits.vocab) return absl::OkStatus();
  return BadField(field, "has token id {}; the vocabulary of {} ends at {}", id, limits.name,
                  limits.vocab - 1);
}

absl::Status TakeLogitBias(const v1::SamplingParams& asked, const ModelLimits& limits,
                           v1::SamplingSpec& spec) {
  if (asked.logit_bias_size() > kMaxLogitBias) {
    return BadField("sampling.logit_bias", "has {} entries; the limit is {}",
                    asked.logit_bias_size(), kMaxLogitBias);
  }
  for (const auto& [id, bias] : asked.logit_bias()) {
    RETURN_IF_ERROR(CheckTokenId("sampling.logit_bias", id, limits));
    RETURN_IF_ERROR(CheckRange(fmt::format("sampling.logit_bias[{}]", id), bias, {-100, 100}));
    (*spec.mutable_logit_bias())[id] = bias;
  }
  return absl::OkStatus();
}

absl::Status TakeSampling(const v1::SamplingParams& asked, const ModelLimits& limits,
                          v1::SamplingSpec& spec) {
  spec.set_temperature(asked.has_temperature() ? asked.temperature() : 1.0f);
  spec.set_top_p(asked.has_top_p() ? asked.top_p() : 1.0f);
  spec.set_min_p(asked.min_p());
  spec.set_frequency_penalty(asked.frequency_penalty());
  spec.set_presence_penalty(asked.presence_penalty());
  spec.set_repetition_penalty(asked.has_repetition_penalty() ? asked.repetition_penalty() : 1.0f);
  spec.set_top_k(std::min(asked.top_k(), limits.vocab));
  spec.set_choices(asked.has_n() ? asked.n() : 1);
  RETURN_IF_ERROR(CheckRange("sampling.temperature", spec.temperature(), {0, 2}));
  RETURN_IF_ERROR(CheckRange("sampling.top_p", spec.top_p(), {0, 1, true}));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", spec.min_p(), {0, 1, false, true}));
  RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", spec.frequency_penalty(), {-2, 2}));
  RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", spec.presence_penalty(), {-2, 2}));
  RETURN_IF_ERROR(
      CheckRange("sampling.repetition_penalty", spec.repetition_penalty(), {0, 10, true}));
  if (spec.choices() < 1 || spec.choices() > kMaxChoices) {
    return BadField("sampling.n", "is {}; it must be in [1, {}]", spec.choices(), kMaxChoices);
  }
  return TakeLogitBias(asked, limits, spec);
}

// Of `best_of` choices that are computed, `n` are returned.
absl::Status TakeBestOf(const v1::SamplingParams& asked, AnswerSpec& answer) {
  answer.answers = answer.sampling.choices();
  if (!asked.has_best_of()) return absl::OkStatus();
  if (asked.best_of() < answer.answers || asked.best_of() > kMaxChoices) {
    return BadField("sampling.best_of", "is {}; it must be in [n, {}], and n is {}",
                    asked.best_of(), kMaxChoices, answer.answers);
  }
  answer.sampling.set_choices(asked.best_of());
  return absl::OkStatus();
}

// Called when the stop tokens are known.
absl::Status TakeBeams(const v1::GenerateRequest& request, const ModelLimits& limits,
                       v1::SamplingSpec& spec) {
  if (!request.sampling().has_beam_search()) return absl::OkStatus();
  const v1::BeamSearch& asked = request.sampling().beam_search();
  if (asked.width() < spec.choices() || asked.width() > kMaxBeams) {
    return BadField("sampling.beam_search.width", "is {}; it must be in [n, {}], and n is {}",
                    asked.width(), kMaxBeams, spec.choices());
  }
  if (request.sampling().has_best_of()) {
    return BadField("sampling.beam_search", "cannot be combined with best_of; set width");
  }
  if (!spec.grammar().empty() || request.chat().tools_size() > 0) {
    return BadField("sampling.beam_search",
                    "cannot be combined with structured output or tools; draw the answer instead");
  }
  const float penalty = asked.has_length_penalty() ? asked.length_penalty() : 1.0f;
  RETURN_IF_ERROR(CheckRange("sampling.beam_search.length_penalty", penalty, {-10, 10}));
  if (!v1::BeamSearch::EarlyStopping_IsValid(asked.early_stopping())) {
    return BadField("sampling.beam_search.early_stopping", "is {}, which has no meaning",
                    static_cast<int>(asked.early_stopping()));
  }
  const uint64_t candidates = uint64_t{asked.width()} * std::max(2, 1 + spec.stop_token_ids_size());
  if (candidates > limits.vocab) {
    return BadField("sampling.beam_search.width",
                    "is {}; with {} stop tokens it needs {} candidates, and the vocabulary has {}",
                    asked.width(), spec.stop_token_ids_size(), candidates, limits.vocab);
  }
  spec.mutable_beams()->set_width(asked.width());
  spec.mutable_beams()->set_length_penalty(penalty);
  spec.mutable_beams()->set_early_stopping(static_cast<uint32_t>(asked.early_stopping()));
  return absl::OkStatus();
}

absl::Status CheckStopStrings(const v1::StopConditions& asked) {
  if (asked.stop_size() > static_cast<int>(StopMatcher::kMaxStops)) {
    return BadField("stop.stop", "has {} strings; the limit is {}", asked.stop_size(),
                    StopMatcher::kMaxStops);
  }
  for (int i = 0; i < asked.stop_size(); ++i) {
    const size_t size = asked.stop(i).size();
    if (size < 1 || size > StopMatcher::kMaxStopBytes) {
      return BadField(fmt::format("stop.stop[{}]", i), "has {} bytes; it must have 1 to {}", size,
                      StopMatcher::kMaxStopBytes);
    }
  }
  return absl::OkStatus();
}

absl::Status TakeStop(const v1::StopConditions& asked, const ModelLimits& limits,
                      AnswerSpec& answer) {
  v1::SamplingSpec& spec = answer.sampling;
  if (asked.max_tokens() > kMostMaxTokens) {
    return BadField("stop.max_tokens", "is {}; it must be in [0, {}]", asked.max_tokens(),
                    kMostMaxTokens);
  }
  if (asked.has_max_tokens() && asked.min_tokens() > asked.max_tokens()) {
    return BadField("stop.min_tokens", "is {}; it may be at most max_tokens, which is {}",
                    asked.min_tokens(), asked.max_tokens());
  }
  if (asked.min_tokens() > limits.max_model_len) {
    return BadField("stop.min_tokens", "is {}; the context of {} has {}", asked.min_tokens(),
                    limits.name, limits.max_model_len);
  }
  answer.prompt_only = asked.has_max_tokens() && asked.max_tokens() == 0;
  spec.set_max_tokens(answer.prompt_only ? 1 : asked.max_tokens());
  spec.set_min_tokens(asked.min_tokens());
  RETURN_IF_ERROR(CheckStopStrings(asked));
  answer.stop.assign(asked.stop().begin(), asked.stop().end());
  answer.include_stop_in_output = asked.include_stop_in_output();
  if (asked.stop_token_ids_size() > kMaxStopTokenIds) {
    return BadField("stop.stop_token_ids", "has {} entries; the limit is {}",
                    asked.stop_token_ids_size(), kMaxStopTokenIds);
  }
  for (const uint32_t id : asked.stop_token_ids()) {
    RETURN_IF_ERROR(CheckTokenId("stop.stop_token_ids", id, limits));
    spec.add_stop_token_ids(id);
  }
  // A grammar says where the answer ends.
  if (asked.ignore_eos() && spec.grammar().empty()) return absl::OkStatus();
  for (const uint32_t id : limits.eos_token_ids) spec.add_stop_token_ids(id);
  return absl::OkStatus();
}

absl::Status TakeOutput(const v1::OutputOptions& asked, AnswerSpec& answer) {
  if (asked.top_logprobs() > kMaxTopLogprobs) {
    return BadField("output.top_logprobs", "is {}; the limit is {}", asked.top_logprobs(),
                    kMaxTopLogprobs);
  }
  answer.sampling.set_top_logprobs(asked.top_logprobs());
  answer.return_logprobs = asked.has_top_logprobs();
  answer.return_token_ids = asked.return_token_ids();
  answer.skip_special_tokens = !asked.has_skip_special_tokens() || asked.skip_special_tokens();
  answer.echo = asked.echo();
  if (asked.prompt_logprobs() > kMaxTopLogprobs) {
    return BadField("output.prompt_logprobs", "is {}; the limit is {}", asked.prompt_logprobs(),
                    kMaxTopLogprobs);
  }
  if (asked.has_prompt_logprobs()) answer.prompt_logprobs = asked.prompt_logprobs();
  if (answer.prompt_only && !answer.echo && !answer.prompt_logprobs && !asked.has_embedding()) {
    return BadField("stop.max_tokens",
                    "is 0; it must be in [1, {}], or 0 with echo, prompt_logprobs or embedding",
                    kMostMaxTokens);
  }
  answer.timing = asked.timing();
  answer.explain = asked.explain();
  return absl::OkStatus();
}

absl::Status CheckPromptLogprobs(size_t prompt_tokens, const AnswerSpec& answer) {
  if (!answer.scores_prompt()) return absl::OkStatus();
  const uint64_t each = 1 + uint64_t{answer.prompt_alternatives()};
  if (prompt_tokens * each <= kMaxPromptLogprobs) return absl::OkStatus();
  return BadField(answer.prompt_logprobs ? "output.prompt_logprobs" : "output.echo",
                  "with log-probabilities: the prompt has {} tokens; with {} alternatives of each, "
                  "the limit is {}",
                  prompt_tokens, each - 1, kMaxPromptLogprobs / each);
}

// The id is written to logs: control characters could forge a line.
absl::Status CheckClientRequestId(const std::string& id) {
  if (id.size() > kMaxClientRequestIdBytes) {
    return BadField("client_request_id", "has {} bytes; the limit is {}", id.size(),
                    kMaxClientRequestIdBytes);
  }
  const auto bad = std::find_if(id.begin(), id.end(), [](unsigned char c) { return c < 0x20; });
  if (bad == id.end()) return absl::OkStatus();
  return BadField("client_request_id", "has a control character at byte {}", bad - id.begin());
}

}  // namespace

absl::Status CheckModelName(const std::string& model, const ModelLimits& limits) {
  if (model.empty() || model == limits.name) return absl::OkStatus();
  const auto alias = std::find(limits.aliases.begin(), limits.aliases.end(), model);
  if (alias != limits.aliases.end()) return absl::OkStatus();
  return ModelNotFound(model, limits.name, limits.aliases);
}

absl::Status ModelNotFound(std::string_view model, std::string_view name,
                           const std::vector<std::string>& aliases) {
  std::string served(name);
  for (const std::string& alias : aliases) served += ", " + alias;
  return WithDetail(
      NotFound("model \"{}\" not found; available: {}", ShownText(model, 128), served),
      {.field = "model", .reason = kReasonModel});
}

absl::StatusOr<AnswerSpec> ValidateAnswer(const v1::GenerateRequest& request,
                                          const ModelLimits& limits, uint64_t random_seed) {
  RETURN_IF_ERROR(CheckModelName(request.model(), limits));
  RETURN_IF_ERROR(CheckClientRequestId(request.client_request_id()));
  AnswerSpec answer;
  RETURN_IF_ERROR(TakeSampling(request.sampling(), limits, answer.sampling));
  RETURN_IF_ERROR(TakeBestOf(request.sampling(), answer));
  ASSIGN_OR_RETURN(*answer.sampling.mutable_grammar(), GrammarOf(request.structured()));
  RETURN_IF_ERROR(TakeStop(request.stop(), limits, answer));
  RETURN_IF_ERROR(TakeBeams(request, limits, answer.sampling));
  if (!answer.sampling.grammar().empty() && answer.sampling.stop_token_ids().empty()) {
    return BadField(kStructuredField, "needs a token that ends the answer, and {} has none",
                    limits.name);
  }
  RETURN_IF_ERROR(TakeOutput(request.output(), answer));
  if (answer.echo && request.has_chat()) {
    return BadField("output.echo", "is for prompts of text or token ids, not for chats");
  }
  const auto& sampling = request.sampling();
  answer.sampling.set_seed(sampling.has_seed() ? static_cast<uint64_t>(sampling.seed())
                                               : random_seed);
  return answer;
}

absl::Status FitToContext(size_t prompt_tokens, const ModelLimits& limits, AnswerSpec& answer) {
  if (prompt_tokens >= limits.max_model_len) {
    return WithDetail(
        InvalidArgument("the prompt has {} tokens; the context of {} has {}, at least one of them "
                        "for the answer: shorten the prompt to {}",
                        prompt_tokens, limits.name, limits.max_model_len, limits.max_model_len - 1),
        {.reason = kReasonContextLength});
  }
  RETURN_IF_ERROR(CheckPromptLogprobs(prompt_tokens, answer));
  const auto room = static_cast<uint32_t>(limits.max_model_len - prompt_tokens);
  v1::SamplingSpec& spec = answer.sampling;
  const uint32_t wanted = spec.max_tokens() > 0 ? spec.max_tokens() : kDefaultMaxTokens;
  spec.set_max_tokens(std::min(std::max(wanted, spec.min_tokens()), room));
  spec.set_min_tokens(std::min(spec.min_tokens(), spec.max_tokens()));
  return absl::OkStatus();
}

}  // namespace penstock
