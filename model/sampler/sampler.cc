#include "model/sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "model/sampler/logprobs.h"
#include "model/sampler/philox.h"
#include "model/sampler/token_draw.h"
#include "model/sampler/token_mass.h"

namespace penstock {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

Sampler::Sampler(SamplingParams params, uint32_t choice, std::span<const uint32_t> prompt)
    : params_(std::move(params)), choice_(choice) {
  if (params_.constraint != nullptr) constraint_ = params_.constraint->Open();
  if (params_.repetition_penalty == 1.0f) return;
  prompt_ids_.assign(prompt.begin(), prompt.end());
  std::ranges::sort(prompt_ids_);
  prompt_ids_.erase(std::unique(prompt_ids_.begin(), prompt_ids_.end()), prompt_ids_.end());
}

Sampler Sampler::Fork() const {
  PENSTOCK_CHECK(constraint_ == nullptr);
  Sampler fork(params_, choice_, {});
  fork.output_tokens_ = output_tokens_;
  fork.prompt_ids_ = prompt_ids_;
  fork.output_counts_ = output_counts_;
  return fork;
}

void Sampler::Observe(uint32_t token) {
  output_tokens_++;
  if (constraint_ != nullptr) constraint_->Observe(token);
  const auto found =
      std::ranges::lower_bound(output_counts_, token, {}, &std::pair<uint32_t, int32_t>::first);
  if (found != output_counts_.end() && found->first == token) {
    found->second++;
  } else {
    output_counts_.insert(found, {token, 1});
  }
}

void Sampler::Change(std::span<float> logits, uint32_t id, float value) {
  if (id >= logits.size()) return;
  changed_.emplace_back(id, logits[id]);
  logits[id] = value;
}

void Sampler::PenalizeRepetition(std::span<float> logits) {
  const float penalty = params_.repetition_penalty;
  const auto penalize = [&](uint32_t id) {
    if (id >= logits.size()) return;
    Change(logits, id, logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty);
  };
  for (const uint32_t id : prompt_ids_) penalize(id);
  for (const auto& [id, count] : output_counts_) {
    if (!std::ranges::binary_search(prompt_ids_, id)) penalize(id);
  }
}

void Sampler::Adjust(std::span<float> logits) {
  for (const auto& [id, bias] : params_.logit_bias) {
    if (id < logits.size()) Change(logits, id, logits[id] + bias);
  }
  if (params_.repetition_penalty != 1.0f) PenalizeRepetition(logits);
  if (params_.frequency_penalty != 0.0f || params_.presence_penalty != 0.0f) {
    for (const auto& [id, count] : output_counts_) {
      if (id >= logits.size()) break;  // ids are ascending
      const float frequency = static_cast<float>(count) * params_.frequency_penalty;
      Change(logits, id, logits[id] - frequency - params_.presence_penalty);
    }
  }
}

// The drawn token is never one whose logit is lost here.
absl::Status Sampler::Constrain(std::span<float> logits) {
  ASSIGN_OR_RETURN(const std::span<const uint32_t> allowed, constraint_->Allowed());
  for (size_t word = 0; word * 32 < logits.size(); ++word) {
    const uint32_t bits = word < allowed.size() ? allowed[word] : 0;
    if (bits == ~uint32_t{0}) continue;
    const auto row = logits.subspan(word * 32, std::min<size_t>(32, logits.size() - word * 32));
    for (size_t i = 0; i < row.size(); ++i) {
      if ((bits >> i & 1) == 0) row[i] = -kInfinity;
    }
  }
  return absl::OkStatus();
}

// min_tokens gives way if a constraint allows only stops: the answer is complete.
void Sampler::BarStops(std::span<float> logits) {
  if (output_tokens_ >= params_.min_tokens) return;
  const size_t before = changed_.size();
  for (const uint32_t id : params_.stop_token_ids) {
    if (id < logits.size() && logits[id] > -kInfinity) Change(logits, id, -kInfinity);
  }
  if (constraint_ == nullptr || MaxLogit(logits) > -kInfinity) return;
  for (size_t i = changed_.size(); i > before; --i) {
    logits[changed_[i - 1].first] = changed_[i - 1].second;
  }
  changed_.resize(before);
}

float Sampler::RawLogit(std::span<const float> logits, uint32_t id) const {
  const auto first = std::ranges::find(changed_, id, &std::pair<uint32_t, float>::first);
  return first != changed_.end() ? first->second : logits[id];
}

DrawSpec Sampler::DrawAt(int32_t position) const {
  const auto words =
      Philox4x32({static_cast<uint32_t>(position), choice_, 0, 0},
                 {static_cast<uint32_t>(params_.seed), static_cast<uint32_t>(params_.seed >> 32)});
  return {.temperature = params_.temperature,
          .top_p = params_.top_p,
          .top_k = params_.top_k,
          .min_p = params_.min_p,
          .random = words[0] | uint64_t{words[1]} << 32};
}

std::vector<DrawSpec> Sampler::OwnDraws(int32_t ahead) const {
  const int32_t position = output_tokens_ + ahead;
  const size_t barred = position < params_.min_tokens ? params_.stop_token_ids.size() : 0;
  if (constraint_ != nullptr || params_.top_logprobs > 0 || barred > kBarredMax ||
      !params_.logit_bias.empty() || params_.repetition_penalty != 1.0f ||
      params_.frequency_penalty != 0.0f || params_.presence_penalty != 0.0f) {
    return {};
  }
  DrawSpec draw = DrawAt(position);
  draw.barred = static_cast<int32_t>(barred);
  std::copy_n(params_.stop_token_ids.begin(), barred, draw.barred_ids.begin());
  return {draw};
}

SampledToken Sampler::Take(const DrawnToken& drawn) {
  SampledToken sampled{.id = drawn.id};
  if (drawn.max == -kInfinity) {
    return Fail(LogitsNotFinite());
  }
  sampled.logprob = LogProbs(drawn.max, drawn.total_mass).Of(drawn.logit);
  Observe(sampled.id);
  return sampled;
}

SampledToken Sampler::Fail(absl::Status status) {
  failure_ = std::move(status);
  output_tokens_++;
  return {.logprob = std::numeric_limits<float>::quiet_NaN()};
}

absl::StatusOr<RankedTokens> Sampler::Rank(std::span<float> logits, size_t count) {
  PENSTOCK_CHECK(constraint_ == nullptr);
  changed_.clear();
  const float max = CapInfinity(logits);
  if (max == -kInfinity) return LogitsNotFinite();
  const LogProbs logprobs(max, TotalMass(Softmax::At(max, 1.0), logits));
  RankedTokens ranked;
  ranked.top = TopLogprobs(logits, logprobs, static_cast<size_t>(params_.top_logprobs));
  for (float& logit : logits) logit = logprobs.Of(logit);
  Adjust(logits);
  BarStops(logits);
  for (const TokenLogprob& token : TopLogits(logits, count)) {
    if (!std::isfinite(token.logprob)) break;
    ranked.best.push_back(
        {.id = token.id, .score = token.logprob, .logprob = RawLogit(logits, token.id)});
  }
  return ranked;
}

SampledToken Sampler::Sample(std::span<float> logits) {
  changed_.clear();
  SampledToken sampled;
  const float max = CapInfinity(logits);
  if (max == -kInfinity) {
    return Fail(LogitsNotFinite());
  }
  const LogProbs logprobs(max, TotalMass(Softmax::At(max, 1.0), logits));
  sampled.top = TopLogprobs(logits, logprobs, static_cast<size_t>(params_.top_logprobs));
  Adjust(logits);
  if (constraint_ != nullptr) {
    if (absl::Status status = Constrain(logits); !status.ok()) return Fail(std::move(status));
  }
  BarStops(logits);
  if (constraint_ != nullptr && MaxLogit(logits) == -kInfinity) {
    return Fail(Internal("the model gives no token that the grammar allows a finite logit"));
  }
  sampled.id = DrawToken(logits, DrawAt(output_tokens_));
  sampled.logprob = logprobs.Of(RawLogit(logits, sampled.id));
  Observe(sampled.id);
  return sampled;
}

}  // namespace penstock
