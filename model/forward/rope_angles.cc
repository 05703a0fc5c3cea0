#include "model/forward/rope_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace penstock {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1's scaling by wavelength (Hugging Face's modeling_rope_utils): keeps high frequencies,
// divides low ones by the factor, and interpolates in between.
double Llama3(const RopeConfig& rope, double frequency) {
  // Full turns within the trained context.
  const double turns = rope.original_max_position * frequency / kTwoPi;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The fractional index of the pair that makes `turns` turns within the trained context (YaRN,
// section 3.2).
double YarnPair(const RopeConfig& rope, int32_t dims, double turns) {
  return dims * std::log(rope.original_max_position / (turns * kTwoPi)) /
         (2 * std::log(static_cast<double>(rope.theta)));
}

// NTK-by-parts interpolation (YaRN, section 3.2): a ramp between the unchanged and the divided
// frequency, over the pairs between beta_fast and beta_slow turns.
double Yarn(const RopeConfig& rope, int32_t dims, int32_t pair, double frequency) {
  double low = YarnPair(rope, dims, rope.beta_fast), high = YarnPair(rope, dims, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(0.0, low);
  high = std::min(dims - 1.0, high);
  if (low == high) high += 0.001;
  const double stretched = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * stretched + frequency * (1 - stretched);
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeConfig& rope, int32_t head_dim) {
  std::vector<float> frequencies;
  const int32_t dims = rope.RotaryDims(head_dim);
  for (int32_t pair = 0; pair < dims / 2; ++pair) {
    double frequency = 1.0 / std::pow(static_cast<double>(rope.theta), 2.0 * pair / dims);
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = Llama3(rope, frequency);
        break;
      case RopeScaling::kYarn:
        frequency = Yarn(rope, dims, pair, frequency);
        break;
      case RopeScaling::kLongRope:
        frequency /= rope.divisors[static_cast<size_t>(pair)];
        break;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

LayerRotation RotationOf(const ModelConfig& config, int32_t layer) {
  const LayerRope which = config.RopeOf(layer);
  if (which == LayerRope::kNone) return {};
  const RopeConfig& rope = which == LayerRope::kLocal ? config.local_rope : config.rope;
  return {.frequencies = RopeFrequencies(rope, config.head_dim),
          .attention_factor = rope.attention_factor};
}

void RopeAngles(std::span<const float> frequencies, float attention_factor, int32_t position,
                float* cosines, float* sines) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<float>(position) * frequencies[i];
    cosines[i] = static_cast<float>(std::cos(angle)) * attention_factor;
    sines[i] = static_cast<float>(std::sin(angle)) * attention_factor;
  }
}

}  // namespace penstock
