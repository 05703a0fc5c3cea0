#include "worker/engine/sampling_spec.h"

#include <algorithm>
#include <cmath>

namespace penstock {

absl::StatusOr<SamplingParams> ToSamplingParams(const v1::SamplingSpec& spec, int32_t vocab) {
  SamplingParams params{
      .temperature = spec.temperature(),
      .top_p = spec.top_p(),
      .top_k = static_cast<int32_t>(spec.top_k()),
      .min_p = spec.min_p(),
      .frequency_penalty = spec.frequency_penalty(),
      .presence_penalty = spec.presence_penalty(),
      .repetition_penalty = spec.repetition_penalty(),
      .seed = spec.seed(),
      .logit_bias = {spec.logit_bias().begin(), spec.logit_bias().end()},
      .stop_token_ids = {spec.stop_token_ids().begin(), spec.stop_token_ids().end()},
      .min_tokens = static_cast<int32_t>(spec.min_tokens()),
      .top_logprobs = static_cast<int32_t>(spec.top_logprobs())};
  // Sorted, because a protobuf map has no stable order and results must not depend on it.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  RETURN_IF_ERROR(ValidateSampling(params, vocab));
  return params;
}

uint32_t BeamCandidates(const v1::SamplingSpec& spec) {
  if (!spec.has_beams()) return 0;
  const auto stops = static_cast<uint32_t>(spec.stop_token_ids_size());
  return spec.beams().width() * std::max(2u, 1 + stops);
}

Sampler MakeSampler(const SamplingParams& params, uint32_t choice, std::span<const uint32_t> tokens,
                    size_t prompt_tokens) {
  Sampler sampler(params, choice, tokens.first(prompt_tokens));
  for (const uint32_t token : tokens.subspan(prompt_tokens)) sampler.Observe(token);
  return sampler;
}

StopRule MakeStopRule(const v1::SamplingSpec& spec, int32_t room) {
  const auto asked = static_cast<int64_t>(spec.max_tokens());
  return {.stop_token_ids = {spec.stop_token_ids().begin(), spec.stop_token_ids().end()},
          .tokens_max = static_cast<int32_t>(std::min<int64_t>(asked, room))};
}

v1::TokenOut MakeTokenOut(const SampledToken& sampled, uint32_t choice, int32_t position,
                          const StopRule& stop) {
  v1::TokenOut out;
  out.set_choice(choice);
  out.set_position(static_cast<uint32_t>(position));
  out.set_token(sampled.id);
  out.set_logprob(sampled.logprob);
  for (const TokenLogprob& token : sampled.top) *out.add_top() = AlternativeOf(token);
  const auto& stops = stop.stop_token_ids;
  if (std::find(stops.begin(), stops.end(), sampled.id) != stops.end()) {
    out.set_finish(v1::TokenOut::STOP);
  } else if (position + 1 >= stop.tokens_max) {
    out.set_finish(v1::TokenOut::LENGTH);
  }
  return out;
}

v1::Alternative AlternativeOf(const TokenLogprob& token) {
  v1::Alternative alternative;
  alternative.set_token(token.id);
  alternative.set_logprob(token.logprob);
  return alternative;
}

std::vector<DrawSpec> FirstDraws(const FirstTokensArgs& args) {
  std::vector<DrawSpec> draws;
  if (args.sampling.constraint != nullptr || args.candidates > 0)
    return draws;  // its samplers would be opened for nothing
  for (uint32_t i = 0; i < args.choices; ++i) {
    const Sampler sampler =
        MakeSampler(args.sampling, args.first_choice + i, args.tokens, args.prompt_tokens);
    const std::vector<DrawSpec> own = sampler.OwnDraws();
    draws.insert(draws.end(), own.begin(), own.end());  // all choices have a draw, or none has
  }
  return draws;
}

namespace {

absl::Status AddCandidates(const FirstTokensArgs& args, const StepOutput& output,
                           v1::FirstTokens& first) {
  Sampler sampler = MakeSampler(args.sampling, 0, args.tokens, args.prompt_tokens);
  ASSIGN_OR_RETURN(const RankedTokens ranked, sampler.Rank(output.logits, args.candidates));
  if (ranked.best.size() < args.candidates) {
    return Internal("{} tokens have a finite score, and a beam search needs {} candidates",
                    ranked.best.size(), args.candidates);
  }
  for (const RankedToken& token : ranked.best) {
    v1::TokenOut& out = *first.add_tokens();
    out.set_choice(static_cast<uint32_t>(first.tokens_size()) - 1);
    out.set_token(token.id);
    out.set_logprob(token.logprob);
    out.set_score(token.score);
    for (const TokenLogprob& other : ranked.top) *out.add_top() = AlternativeOf(other);
  }
  return absl::OkStatus();
}

absl::Status AddFirst(const FirstTokensArgs& args, const StepOutput& output,
                      v1::FirstTokens& first) {
  for (uint32_t i = 0; i < args.choices; ++i) {
    const uint32_t choice = args.first_choice + i;
    Sampler sampler = MakeSampler(args.sampling, choice, args.tokens, args.prompt_tokens);
    const int32_t position = sampler.output_tokens();
    std::vector<float> scratch(output.logits.begin(), output.logits.end());
    const StepOutput own{.logits = scratch, .drawn = output.drawn};
    const SampledToken sampled = own.Sample(sampler, i);
    if (std::isnan(sampled.logprob)) return sampler.failure();
    *first.add_tokens() = MakeTokenOut(sampled, choice, position, args.stop);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::FirstTokens> MakeFirstTokens(const FirstTokensArgs& args, const PromptRun& run,
                                                const StepOutput& output) {
  v1::FirstTokens first;
  RETURN_IF_ERROR(args.candidates > 0 ? AddCandidates(args, output, first)
                                      : AddFirst(args, output, first));
  first.set_queue_ms(Milliseconds(run.begun - run.arrival));
  first.set_prefill_ms(Milliseconds(run.end - run.begun));
  const auto cached = static_cast<uint32_t>(run.cached);
  first.set_computed_tokens(static_cast<uint32_t>(args.tokens.size()) - cached);
  first.set_cached_tokens(std::min(cached, static_cast<uint32_t>(args.prompt_tokens)));
  return first;
}

}  // namespace penstock
