#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/quantised_matrix.h"

namespace penstock {

// Rounds rows of weights to a quantised format, one after the other. The memory is used again for
// every row.
class RowRounder {
 public:
  // `format` has no zero points; its scales are f32 for E4M3, and f16 or, for a table, bf16. Only
  // with scales of kTwoLevel it may have offsets, and its codes are then integers.
  explicit RowRounder(const QuantisedFormat& format);

  // Rounds each group to the nearest multiples of its scale. 4 bits: the value of the largest
  // magnitude becomes code 0, which is -8 times the scale, as in GGML's Q4_0: the scale's sign
  // makes use of all 16 codes. 8 bits: it becomes 127 times the scale. E4M3: the largest magnitude
  // becomes 448 times the scale. Integers of a table: it becomes the largest of them times the
  // scale, whatever its sign. With offsets, as in GGML's Q4_K: code 0 is the least value or 0,
  // whichever is less, and the largest code the largest value; then scales and offsets of a run are
  // rounded to the nearest multiples of their factors. With scales of kTwoLevel alone, the largest
  // magnitude is one less than the zero point times the scale. Returns false if a value is not
  // finite or too large for the scale.
  bool Round(std::span<const float> weights);
  // Valid until the next Round.
  QuantisedRow row() const {
    return {.codes = codes_,
            .scales = scales_,
            .zeros = {},
            .offsets = offsets_,
            .scale_factors = scale_factors_,
            .offset_factors = offset_factors_};
  }

 private:
  bool RoundGroup(std::span<const float> weights, uint8_t* codes, float* scale) const;
  bool RoundToTable(std::span<const float> weights, uint8_t* codes, float* scale) const;
  bool RoundE4m3Group(std::span<const float> weights, uint8_t* codes, float* scale) const;
  bool RoundRun(std::span<const float> weights);

  const QuantisedFormat format_;
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, offsets_, scale_factors_, offset_factors_;
};

}  // namespace penstock
