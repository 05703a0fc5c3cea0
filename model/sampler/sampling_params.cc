#include <algorithm>
#include <cstdint>
#include <string_view>

#include "model/sampler/sampler.h"

namespace penstock {
namespace {

constexpr size_t kMaxListed = 1024;

// The comparison is written so that NaN is out of range.
absl::Status CheckRange(std::string_view field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("sampling.{} is {:g}, allowed is {:g} to {:g}", field, value, min, max);
}

absl::Status CheckIds(std::string_view field, size_t count, uint32_t greatest, int32_t vocab) {
  if (count > kMaxListed) {
    return InvalidArgument("sampling.{} has {} entries, the limit is {}", field, count, kMaxListed);
  }
  if (count > 0 && greatest >= static_cast<uint32_t>(vocab)) {
    return InvalidArgument("sampling.{} has token id {}, the model's greatest is {}", field,
                           greatest, vocab - 1);
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(const SamplingParams& params, int32_t vocab) {
  uint32_t greatest = 0;
  for (const auto& [id, bias] : params.logit_bias) {
    greatest = std::max(greatest, id);
    RETURN_IF_ERROR(CheckRange(fmt::format("logit_bias[{}]", id), bias, -100, 100));
  }
  return CheckIds("logit_bias", params.logit_bias.size(), greatest, vocab);
}

absl::Status CheckStopIds(const SamplingParams& params, int32_t vocab) {
  uint32_t greatest = 0;
  for (const uint32_t id : params.stop_token_ids) greatest = std::max(greatest, id);
  return CheckIds("stop_token_ids", params.stop_token_ids.size(), greatest, vocab);
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& params, int32_t vocab) {
  RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0, 2));
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return InvalidArgument("sampling.top_p is {:g}, allowed is above 0 up to 1", params.top_p);
  }
  RETURN_IF_ERROR(CheckRange("top_k", params.top_k, 0, INT32_MAX));
  if (!(params.min_p >= 0 && params.min_p < 1)) {
    return InvalidArgument("sampling.min_p is {:g}, allowed is 0 to below 1", params.min_p);
  }
  RETURN_IF_ERROR(CheckRange("frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(CheckRange("presence_penalty", params.presence_penalty, -2, 2));
  constexpr float kLeastRepetition = 0.01f;
  if (!(params.repetition_penalty >= kLeastRepetition && params.repetition_penalty <= 10)) {
    return InvalidArgument("sampling.repetition_penalty is {:g}, allowed is 0.01 to 10",
                           params.repetition_penalty);
  }
  RETURN_IF_ERROR(CheckRange("min_tokens", params.min_tokens, 0, 1 << 20));
  RETURN_IF_ERROR(CheckRange("top_logprobs", params.top_logprobs, 0, 20));
  RETURN_IF_ERROR(CheckLogitBias(params, vocab));
  return CheckStopIds(params, vocab);
}

}  // namespace penstock
