#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward/model_runner.h"

namespace penstock {

// The part of a step that goes on behind the layer that is checked (kCheckedLayer). Pure data.
struct BlendedStep {
  std::vector<int32_t> rows;            // of the step, ascending: all but the blended ones left out
  std::vector<SequenceStep> sequences;  // of these rows, in order; chosen ones have no results
};

// True if a sequence of the step is blended.
bool IsBlended(std::span<const SequenceStep> sequences);
// The number of rows before the first blended one.
int64_t RowsBeforeBlended(std::span<const SequenceStep> sequences);

// Chooses the rows of blended sequences that are computed further, and sets the results of their
// BlendedTokens. `squares` are those of CudaBlend::CompareValues, of all blended rows. Pure but for
// these results.
BlendedStep ChooseRows(std::span<const SequenceStep> sequences, std::span<const float> squares);

}  // namespace penstock
