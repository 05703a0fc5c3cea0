#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// exp() as exact integers. With s = (max - logit) * steepness, in units of 1/32 of an octave, the
// mass of a token is round(2^40 * 2^(-s / 32)): sums of masses are exact in 64 bits for up to 2^23
// tokens, so that no order of summation and no vector width changes a token. Only +, -, * and bit
// operations of IEEE doubles are used (compiled without contraction), which are the same
// everywhere.
constexpr int kMassBits = 40;
constexpr int kOctaveSteps = 32;
// From this s on the mass is zero. Every step below is a bucket: floor(s), 0 for the likeliest.
constexpr int kBuckets = (kMassBits + 1) * kOctaveSteps;
constexpr int kMassBlock = 256;  // tokens that MassBlock does at once

struct Softmax {
  float max = 0;         // the greatest logit; finite
  double steepness = 0;  // kOctaveSteps * log2(e) / temperature; finite

  static Softmax At(float max, double temperature);

  // s of one logit, monotone in it: at least 0, kBuckets where the mass is zero or logit is NaN.
  double Steps(float logit) const {
    const double steps = (static_cast<double>(max) - static_cast<double>(logit)) * steepness;
    return steps < kBuckets ? steps : kBuckets;
  }
};

// mass[i] and steps[i] of each logit; at most kMassBlock of them.
void MassBlock(const Softmax& softmax, std::span<const float> logits, double* steps,
               uint64_t* mass);

uint64_t Mass(const Softmax& softmax, float logit);
uint64_t TotalMass(const Softmax& softmax, std::span<const float> logits);

// The greatest element, NaN apart; -infinity for none.
float MaxLogit(std::span<const float> logits);

// Natural logarithm of a normal positive number within 1e-15, from IEEE basic operations alone:
// libm's last bit depends on its version and on the machine.
double PortableLog(double x);

}  // namespace penstock
