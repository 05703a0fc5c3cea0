#include "model/weights/rounded_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/e4m3.h"
#include "kernels/f16.h"
#include "model/weights/weight_policy.h"

namespace penstock {
namespace {

// The value of the largest magnitude; infinity or NaN if there is one.
float Extreme(std::span<const float> weights) {
  uint32_t top = 0;
  float extreme = 0;
  for (const float weight : weights) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(weight) & 0x7fffffffu;
    if (magnitude > top) {
      top = magnitude;
      extreme = weight;
    }
  }
  return extreme;
}

// The least value of the type that is at least `scale`, which is not negative. Infinity if there is
// none.
float ScaleAtLeast(ScaleType type, float scale) {
  if (type == ScaleType::kF32 || !std::isfinite(scale)) return scale;
  const auto rounded = [type](float value) {
    return type == ScaleType::kF16 ? HalfToFloat(FloatToHalf(value)) : ToFloat(ToBf16(value));
  };
  const float nearest = rounded(scale);
  if (nearest >= scale) return nearest;
  const float step = type == ScaleType::kF16 ? 0x1p-10f : 0x1p-7f;  // between numbers near 1
  return rounded(scale * (1 + step));
}

// Replaces values by the nearest multiples of an f16 factor, as integers, and returns the factor;
// infinity if there is none.
float RoundToFactor(std::span<float> values) {
  constexpr float kLargest = 127;
  const float factor = ScaleAtLeast(ScaleType::kF16, std::fabs(Extreme(values)) / kLargest);
  for (float& value : values) value = factor == 0 ? 0.0f : std::nearbyintf(value / factor);
  return factor;
}

}  // namespace

std::optional<WeightPolicy> WeightPolicyOf(std::string_view name) {
  if (name == "checkpoint") return WeightPolicy::kCheckpoint;
  if (name == "int8") return WeightPolicy::kInt8;
  if (name == "int4") return WeightPolicy::kInt4;
  return std::nullopt;
}

MatrixForms FormsOf(WeightPolicy policy) {
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 32};
  if (policy == WeightPolicy::kInt8) return {.layers = int8, .lm_head = int8};
  if (policy == WeightPolicy::kInt4) return {.layers = int4, .lm_head = int8};
  return {};
}

RowRounder::RowRounder(const QuantisedFormat& format) : format_(format) {
  PENSTOCK_CHECK(!format.zeros && (!format.offsets || format.two_level()));
  PENSTOCK_CHECK(!format.two_level() || format.code == CodeType::kInteger);
}

bool RowRounder::Round(std::span<const float> weights) {
  if (format_.two_level()) {
    for (auto* part : {&scales_, &offsets_, &scale_factors_, &offset_factors_}) part->clear();
    codes_.clear();
    for (size_t first = 0; first < weights.size(); first += kRunInputs) {
      const size_t count = std::min<size_t>(kRunInputs, weights.size() - first);
      if (!RoundRun(weights.subspan(first, count))) return false;
    }
    return true;
  }
  const auto group = static_cast<size_t>(format_.group);
  codes_.resize(weights.size());
  scales_.resize((weights.size() + group - 1) / group);
  for (size_t g = 0; g < scales_.size(); ++g) {
    const size_t first = g * group, count = std::min(group, weights.size() - first);
    if (!RoundGroup(weights.subspan(first, count), codes_.data() + first, &scales_[g])) {
      return false;
    }
  }
  return true;
}

// Appends a run.
bool RowRounder::RoundRun(std::span<const float> weights) {
  const auto group = static_cast<size_t>(format_.group);
  const auto largest = static_cast<float>((1 << format_.bits) - 1);
  const auto zero = static_cast<float>(format_.zero());
  const size_t first_group = scales_.size();
  for (size_t at = 0; at < weights.size(); at += group) {
    const auto part = weights.subspan(at, std::min(group, weights.size() - at));
    if (format_.offsets) {
      const float low = std::min(0.0f, std::ranges::min(part));
      scales_.push_back((std::ranges::max(part) - low) / largest);
      offsets_.push_back(low);
    } else {
      scales_.push_back(std::fabs(Extreme(part)) / (zero - 1));
    }
  }
  const float scale_factor = RoundToFactor(std::span(scales_).subspan(first_group));
  float offset_factor = 0;
  if (format_.offsets) offset_factor = RoundToFactor(std::span(offsets_).subspan(first_group));
  if (!std::isfinite(Extreme(weights)) || !std::isfinite(scale_factor + offset_factor)) {
    return false;
  }
  scale_factors_.push_back(scale_factor);
  if (format_.offsets) offset_factors_.push_back(offset_factor);
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t at = first_group + i / group;
    const float scale = scale_factor * scales_[at];
    const float offset = format_.offsets ? offset_factor * offsets_[at] : 0.0f;
    const float code = scale == 0 ? 0.0f : std::nearbyintf((weights[i] - offset) / scale);
    codes_.push_back(static_cast<uint8_t>(std::clamp(code + zero, 0.0f, largest)));
  }
  return true;
}

bool RowRounder::RoundE4m3Group(std::span<const float> weights, uint8_t* codes,
                                float* scale) const {
  *scale = std::fabs(Extreme(weights)) / kE4m3Max;
  if (!std::isfinite(*scale)) return false;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float number = *scale == 0 ? 0.0f : weights[i] / *scale;
    codes[i] = FloatToE4m3(std::clamp(number, -kE4m3Max, kE4m3Max));
  }
  return true;
}

// Scales are rounded up, so that no weight is beyond the table.
bool RowRounder::RoundToTable(std::span<const float> weights, uint8_t* codes, float* scale) const {
  const CodeTable& table = *format_.table();
  const int zero = format_.zero();
  const auto largest = static_cast<float>(*std::ranges::max_element(table) - zero);
  *scale = ScaleAtLeast(format_.scale, std::fabs(Extreme(weights)) / largest);
  if (!std::isfinite(*scale)) return false;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float number = *scale == 0 ? 0.0f : weights[i] / *scale;
    const auto nearest = std::ranges::min_element(table, {}, [&](uint8_t integer) {
      return std::fabs(static_cast<float>(integer - zero) - number);
    });
    codes[i] = static_cast<uint8_t>(nearest - table.begin());
  }
  return true;
}

bool RowRounder::RoundGroup(std::span<const float> weights, uint8_t* codes, float* scale) const {
  if (format_.e4m3()) return RoundE4m3Group(weights, codes, scale);
  if (format_.table() != nullptr) return RoundToTable(weights, codes, scale);
  const float extreme = Extreme(weights), steps = format_.bits == 4 ? -8.0f : 127.0f;
  *scale = HalfToFloat(FloatToHalf(extreme / steps));
  if (!std::isfinite(*scale)) return false;
  const float inverse = *scale == 0 ? 0.0f : 1 / *scale;
  const auto zero = static_cast<float>(format_.zero());
  const float min = format_.bits == 4 ? 0.0f : 1.0f;
  const float max = 2 * zero - 1;
  for (size_t i = 0; i < weights.size(); ++i) {
    codes[i] =
        static_cast<uint8_t>(std::clamp(std::nearbyintf(weights[i] * inverse) + zero, min, max));
  }
  return true;
}

}  // namespace penstock
