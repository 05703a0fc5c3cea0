#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// exp() as integers. With s = (max - logit) * steepness, in units of 1/32 of an octave, the mass of
// a token is round(2^40 * 2^(-s / 32)), with s and the power in the precision of a float. Sums of
// masses are exact in 64 bits for up to 2^23 tokens, so neither the order of summation nor the
// vector width changes a token. Uses only +, -, * and bit operations on IEEE floats, compiled
// without contraction, which give the same results everywhere. GPUs take no doubles for it: many
// compute them at 1/64 of the rate of floats.
constexpr int kMassBits = 40;
constexpr int kOctaveSteps = 32;
// At this s and above, the mass is zero. The bucket of a token is floor(s); the most likely token
// is in bucket 0.
constexpr int kBuckets = (kMassBits + 1) * kOctaveSteps;
constexpr int kMassBlock = 256;  // tokens that one call of MassBlock handles

// The parameters that map a logit to its mass.
struct Softmax {
  float max = 0;        // the greatest logit; finite
  float steepness = 0;  // kOctaveSteps * log2(e) / temperature; at most the largest float

  static Softmax At(float max, double temperature);

  // Returns s of one logit, which is monotone in the logit: at least 0, and kBuckets if the mass is
  // zero or the logit is NaN.
  float Steps(float logit) const {
    const float steps = (max - logit) * steepness;
    return steps < kBuckets ? steps : kBuckets;
  }
};

// Computes mass[i] and steps[i] of each logit; at most kMassBlock logits.
void MassBlock(const Softmax& softmax, std::span<const float> logits, float* steps, uint64_t* mass);

uint64_t Mass(const Softmax& softmax, float logit);
uint64_t TotalMass(const Softmax& softmax, std::span<const float> logits);

// Returns the greatest element, ignoring NaN; -infinity if there is none.
float MaxLogit(std::span<const float> logits);

// Natural logarithm of a normal positive number within 1e-15, from IEEE basic operations only: the
// last bit of libm's result depends on its version and on the machine.
double PortableLog(double x);

}  // namespace penstock
