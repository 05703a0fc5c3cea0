#include "worker/engine/token_request.h"

#include <cmath>

#include "kvstore/names/kv_policy.h"
#include "proto/inference.pb.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {
namespace {

// The same limit in every program. More choices would let one request exhaust the engine.
constexpr uint32_t kChoicesMax = 16;
constexpr uint32_t kBeamsMax = 8;
constexpr uint32_t kEarlyStoppingMax = v1::BeamSearch::EarlyStopping_MAX;

// The most KV blocks at once for a request's tokens. A prefill worker holds an evicted prompt as a
// whole, and beside it what stays of it.
template <class Request>
int64_t BlocksOf(const Request& request, const TokenLimits& limits) {
  const KvLayout& layout = limits.layout;
  const auto tokens = static_cast<uint32_t>(request.tokens_size());
  const uint32_t prompt = request.prompt_tokens();
  const uint32_t evicted = EvictedTokens(request.kv_policy(), prompt, tokens);
  const auto eviction = EvictionOf(request.kv_policy());
  const bool orders = eviction && eviction->EvictsAnswer() && !eviction->spans.empty();
  if (std::is_same_v<Request, v1::PrefillRequest> && (evicted > 0 || orders)) {
    return layout.BlocksFor(eviction->HeldMax(prompt, tokens)) + layout.BlocksFor(prompt);
  }
  // It also holds the parts of a prompt that it blends, each behind the leading tokens.
  if (std::is_same_v<Request, v1::PrefillRequest> && BlendOf(request.kv_policy())) {
    return 2 * layout.BlocksFor(tokens) + kBlendPartsMax;
  }
  return layout.BlocksAtOnce(int64_t{tokens} - evicted, limits.chunk_tokens);
}

template <class Request>
absl::Status CheckPrompt(const Request& request, const TokenLimits& limits) {
  const int64_t tokens = request.tokens_size();
  if (request.key().session() == 0 || request.key().nonce() == 0) {
    return InvalidArgument("key.session and key.nonce must not be 0");
  }
  if (tokens < 1 || tokens >= limits.max_position) {
    return InvalidArgument("tokens has {} entries; the model's context allows 1 to {}", tokens,
                           limits.max_position - 1);
  }
  if (request.prompt_tokens() < 1 || request.prompt_tokens() > tokens) {
    return InvalidArgument("prompt_tokens is {}; it must be from 1 to tokens' size, {}",
                           request.prompt_tokens(), tokens);
  }
  for (int i = 0; i < request.tokens_size(); ++i) {
    if (request.tokens(i) >= static_cast<uint32_t>(limits.vocab)) {
      return InvalidArgument("tokens[{}] is {}; the vocabulary has {} entries", i,
                             request.tokens(i), limits.vocab);
    }
  }
  const int64_t blocks = BlocksOf(request, limits);
  if (blocks > limits.blocks_total) {
    return ResourceExhausted(
        "tokens needs {} KV blocks and this worker has {}: start it with more --kv_memory", blocks,
        limits.blocks_total);
  }
  return absl::OkStatus();
}

// `answered` tokens behind the prompt: a search begins with none.
absl::Status CheckBeams(const v1::SamplingSpec& sampling, int64_t answered, int32_t vocab) {
  if (!sampling.has_beams()) return absl::OkStatus();
  const v1::BeamSpec& beams = sampling.beams();
  if (beams.width() < sampling.choices() || beams.width() > kBeamsMax) {
    return InvalidArgument("sampling.beams.width is {}; it must be from choices, {}, to {}",
                           beams.width(), sampling.choices(), kBeamsMax);
  }
  if (!std::isfinite(beams.length_penalty()) || beams.early_stopping() > kEarlyStoppingMax) {
    return InvalidArgument(
        "sampling.beams has length_penalty {} and early_stopping {}; they must be finite and at "
        "most {}",
        beams.length_penalty(), beams.early_stopping(), kEarlyStoppingMax);
  }
  if (answered > 0 || sampling.first_choice() > 0 || !sampling.grammar().empty()) {
    return InvalidArgument(
        "sampling.beams cannot be combined with a grammar, with first_choice, or with tokens that "
        "were answered already");
  }
  if (BeamCandidates(sampling) > static_cast<uint32_t>(vocab)) {
    return InvalidArgument("sampling.beams needs {} candidates; the vocabulary has {} entries",
                           BeamCandidates(sampling), vocab);
  }
  return absl::OkStatus();
}

template <class Request>
absl::Status Check(const Request& request, const TokenLimits& limits) {
  RETURN_IF_ERROR(CheckPrompt(request, limits));
  const v1::SamplingSpec& sampling = request.sampling();
  if (sampling.choices() < 1 || sampling.first_choice() >= kChoicesMax ||
      sampling.choices() > kChoicesMax - sampling.first_choice()) {
    return InvalidArgument("sampling.first_choice {} and choices {} must lie within 0 to {}",
                           sampling.first_choice(), sampling.choices(), kChoicesMax);
  }
  const int64_t answered = request.tokens_size() - request.prompt_tokens();
  if (sampling.max_tokens() <= answered) {
    return InvalidArgument("sampling.max_tokens is {}, but {} tokens were answered already",
                           sampling.max_tokens(), answered);
  }
  return CheckBeams(sampling, answered, limits.vocab);
}

template <class Request>
PrefixPins Pins(const Request& request) {
  PrefixPins out{.tenant = request.tenant_id(), .pins = {}};
  for (const v1::PrefixPin& pin : request.pins()) {
    out.pins.push_back({.tokens = pin.tokens(), .ttl = std::chrono::milliseconds(pin.ttl_ms())});
  }
  return out;
}

}  // namespace

TokenLimits LimitsOf(const ModelHost& host, int32_t chunk_tokens) {
  return {.vocab = host.runner->vocab(),
          .max_position = host.runner->max_position(),
          .layout = host.layout,
          .blocks_total = host.pool->blocks_total(),
          .chunk_tokens = chunk_tokens};
}

absl::Status CheckTokens(const v1::PrefillRequest& request, const TokenLimits& limits) {
  return Check(request, limits);
}

absl::Status CheckTokens(const v1::DecodeRequest& request, const TokenLimits& limits) {
  return Check(request, limits);
}

absl::Status CheckTokens(const v1::MoveRequest& request, const TokenLimits& limits) {
  return CheckPrompt(request, limits);
}

PrefixPins PinsOf(const v1::PrefillRequest& request) { return Pins(request); }
PrefixPins PinsOf(const v1::DecodeRequest& request) { return Pins(request); }

}  // namespace penstock
