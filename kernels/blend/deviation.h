#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/paged_kv.h"
#include "kernels/rope.h"
#include "kernels/view.h"

namespace penstock {

// The values of one layer of tokens whose pages are about to be written: [tokens, kv_heads *
// head_dim]. The result's memory is `memory`.
View<const float, 2> ReadValues(const PagedKv& kv, int32_t layer, std::span<const KvSlot> slots,
                                std::vector<float>& memory);

// How far re-used values are from computed ones.
struct ValueDeviation {
  std::vector<float> tokens;  // for each token, the sum of the squares of the differences
  // The root of the sum of all squares, as a part of the root of the sum of the computed values'.
  float relative = 0;
};

// `computed` is [tokens, at least first_column + the columns of `reused`].
ValueDeviation DeviationOf(View<const float, 2> reused, View<const float, 2> computed,
                           int64_t first_column);

// ValueDeviation::relative, of the sums of the squares of the differences and of the values.
float RelativeDeviation(double differences, double values);

// The `count` tokens that deviate most, ascending, or all if there are fewer. Of equal ones the
// earlier is taken, and NaN is more than every number. Pure.
std::vector<uint32_t> MostDeviating(std::span<const float> tokens, int64_t count);

}  // namespace penstock
