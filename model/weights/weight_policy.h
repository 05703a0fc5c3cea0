#pragma once

#include <optional>
#include <string_view>

#include "kernels/quantised_matrix.h"

namespace penstock {

// The form in which a 16-bit checkpoint's matrices are held in memory. Norms, biases and an
// embedding table of its own always stay as they are.
enum class WeightPolicy {
  kCheckpoint,  // as the checkpoint stores them
  kInt8,        // 8-bit codes, groups of 128
  kInt4,        // 4-bit codes, groups of 32; the output matrix as kInt8
};

// "checkpoint", "int8", "int4"; nullopt for another name.
std::optional<WeightPolicy> WeightPolicyOf(std::string_view name);

// The format to round matrices to when they are loaded; nullopt leaves them as they are.
struct MatrixForms {
  std::optional<QuantisedFormat> layers;
  std::optional<QuantisedFormat> lm_head;
};
MatrixForms FormsOf(WeightPolicy policy);

}  // namespace penstock
