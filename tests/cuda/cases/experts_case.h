#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/weight_codes.h"

namespace penstock::cuda {

// The worst relative deviation of a score from one in double precision.
double ScoreDeviation(int rows, int count, int hidden, uint64_t seed, bool bias = false);
// True if each row's scores have the bits that they have without other rows.
bool ScoresAreOfTheirRow(int rows, int count, int hidden, uint64_t seed);

struct RouteCase {
  int32_t rows = 5;
  int32_t experts = 8;
  int32_t per_token = 2;
  bool normalise = true;
  bool sigmoid = false;
  bool choice_bias = false;
  bool shared = false;
  bool shared_gate = false;
  float scale = 1;
  int32_t groups = 1;
  int32_t kept_groups = 1;
  bool ties = false;  // scores are whole numbers, so that many are equal
  uint64_t seed = 1;
};
struct RouteInputs {
  std::vector<float> scores;  // [rows][experts, and one more with a gate]
  std::vector<float> bias;    // [experts], or empty
};
RouteInputs InputsOf(const RouteCase& c);

struct RouteResult {
  std::vector<int32_t> chosen;  // [rows][per_token]
  std::vector<float> weights;
  std::vector<float> shared;  // [rows], or empty
};
RouteResult RunRoute(const RouteCase& c, const RouteInputs& inputs);
// The worst deviation of a weight from one in double precision; infinity if a choice differs.
double RouteDeviation(const RouteCase& c);

// True if pairs of random choices are sorted as GroupParams says.
bool GroupIsExact(int rows, int experts, int per_token, uint64_t seed);

enum class GroupedKernel { kSkinny1, kSkinny2, kSkinny4, kSkinny8, kWide, kChosen };
// True if each row of a grouped product has the bits of a dense one with its expert's matrix.
// `sizes` has the number of rows of each expert.
bool GroupedIsDense(const std::vector<int>& sizes, int inputs, int outputs, GroupedKernel kernel,
                    uint64_t seed);
// The same for matrices in codes, in two sections of this form, of which two are expanded at once.
// Its kernel is kChosen or one for few rows.
bool GroupedCodesAreDense(const CodeForm& form, const std::vector<int>& sizes, int inputs,
                          int outputs, GroupedKernel kernel, uint64_t seed);

// The worst deviation of a clamped gate of pairs of random experts from one in double precision,
// relative to numbers of 1 and more. `width` is that of the output.
double ClampedGateDeviation(int pairs, int width, int slices, bool bias, uint64_t seed);

struct MixCase {
  int32_t rows = 3;
  int32_t width = 64;
  int32_t per_token = 2;
  int32_t slices = 1;
  bool sorted = true;  // pairs have places
  bool adds = false;
  bool bias = false;  // of each expert
};
// True if sums have the bits of fused multiplications and additions, in the order of choice.
bool MixIsExact(const MixCase& c, uint64_t seed);

}  // namespace penstock::cuda
