#include "model/sampler/token_mass.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace penstock {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kLog2E = 1.44269504088896340736;
// Adding this constant rounds a small float to an integer, which is then in its low bits.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

// Taylor coefficients of 2^f: ln(2)^k / k!. For |f| <= 1/2 a polynomial of degree 7 has an error of
// 6e-9, less than a float's rounding.
constexpr int kDegree = 7;
constexpr auto kExp2 = [] {
  std::array<float, kDegree + 1> coefficients{};
  double term = 1;
  for (int k = 0; k <= kDegree; k++) {
    coefficients[k] = static_cast<float>(term);
    term *= kLn2 / (k + 1);
  }
  return coefficients;
}();

// Returns round(2^kMassBits * 2^(-steps / kOctaveSteps)). Has no branch, so that loops vectorise.
inline uint64_t MassOfSteps(float steps) {
  const float exponent = steps * (-1.0f / kOctaveSteps);
  const float rounded = exponent + kRound;
  const float fraction = exponent - (rounded - kRound);
  float power = kExp2[kDegree];
  for (int k = kDegree - 1; k >= 0; k--) power = power * fraction + kExp2[k];
  const uint32_t scale_bits =
      (std::bit_cast<uint32_t>(rounded) << 23) + (uint32_t{127 + kMassBits} << 23);
  constexpr double kToInteger = 4503599627370496.0;  // 2^52: its sums are integers, to the nearest
  const double mass = static_cast<double>(power * std::bit_cast<float>(scale_bits)) + kToInteger;
  return std::bit_cast<uint64_t>(mass) & ((uint64_t{1} << 52) - 1);
}

}  // namespace

Softmax Softmax::At(float max, double temperature) {
  const double steepness = kOctaveSteps * kLog2E / temperature;
  constexpr double kLargest = std::numeric_limits<float>::max();
  return {.max = max, .steepness = static_cast<float>(std::min(steepness, kLargest))};
}

void MassBlock(const Softmax& softmax, std::span<const float> logits, float* steps,
               uint64_t* mass) {
  const float* const begin = logits.data();
  const size_t count = logits.size();
  for (size_t i = 0; i < count; i++) steps[i] = softmax.Steps(begin[i]);
  for (size_t i = 0; i < count; i++) mass[i] = MassOfSteps(steps[i]);
}

uint64_t Mass(const Softmax& softmax, float logit) { return MassOfSteps(softmax.Steps(logit)); }

uint64_t TotalMass(const Softmax& softmax, std::span<const float> logits) {
  float steps[kMassBlock];
  uint64_t mass[kMassBlock];
  uint64_t total = 0;
  for (size_t i = 0; i < logits.size(); i += kMassBlock) {
    const auto block = logits.subspan(i, std::min<size_t>(kMassBlock, logits.size() - i));
    MassBlock(softmax, block, steps, mass);
    for (size_t j = 0; j < block.size(); j++) total += mass[j];
  }
  return total;
}

float MaxLogit(std::span<const float> logits) {
  constexpr size_t kLanes = 16;  // independent lanes, so that the loop vectorises
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  const float* const x = logits.data();
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; lane++) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < logits.size(); i++) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

double PortableLog(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & ((uint64_t{1} << 52) - 1)) | 0x3ff0000000000000u);
  if (mantissa > 1.41421356237309515) {
    mantissa *= 0.5;
    exponent++;
  }
  // log(m) = 2 * atanh((m - 1) / (m + 1)), by its Taylor series; the argument is at most 0.172.
  const double s = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int k = 25; k >= 1; k -= 2) series = series * (s * s) + 1.0 / k;
  return exponent * kLn2 + 2 * s * series;
}

}  // namespace penstock
