#include "model/sampler/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/sampler/token_draw.h"
#include "model/sampler/token_mass.h"

namespace penstock {

LogProbs::LogProbs(float max, uint64_t total_mass) : max_(max) {
  constexpr double kUnit = static_cast<double>(uint64_t{1} << kMassBits);
  log_total_ = PortableLog(static_cast<double>(total_mass) / kUnit);
}

float LogProbs::Of(float logit) const {
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max_) - log_total_);
}

std::vector<TokenLogprob> TopLogits(std::span<const float> logits, size_t count) {
  std::vector<TokenLogprob> top;
  if (count == 0) return top;
  for (uint32_t id = 0; id < logits.size(); id++) {
    const float logit = logits[id];
    if (std::isnan(logit) || (top.size() == count && logit <= top.back().logprob)) continue;
    if (top.size() == count) top.pop_back();
    const auto worse = std::ranges::find_if(
        top, [logit](const TokenLogprob& other) { return other.logprob < logit; });
    top.insert(worse, {id, logit});
  }
  return top;
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, const LogProbs& logprobs,
                                      size_t count) {
  std::vector<TokenLogprob> top = TopLogits(logits, count);
  for (TokenLogprob& token : top) token.logprob = logprobs.Of(token.logprob);
  return top;
}

absl::Status LogitsNotFinite() {
  return Internal("the model computed no finite logit; check the checkpoint for damage");
}

TokenScore ScoreToken(std::span<float> logits, uint32_t token, size_t top_count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float max = CapInfinity(logits);
  if (max == -kInfinity) return {.logprob = std::numeric_limits<float>::quiet_NaN(), .top = {}};
  const LogProbs logprobs(max, TotalMass(Softmax::At(max, 1.0), logits));
  const float own = logits[token];
  const auto better = std::ranges::count_if(logits, [own](float logit) { return logit > own; });
  return {.logprob = logprobs.Of(own),
          .rank = static_cast<uint32_t>(better) + 1,
          .top = TopLogprobs(logits, logprobs, top_count)};
}

}  // namespace penstock
