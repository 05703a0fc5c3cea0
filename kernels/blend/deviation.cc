#include "kernels/blend/deviation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace penstock {

View<const float, 2> ReadValues(const PagedKv& kv, int32_t layer, std::span<const KvSlot> slots,
                                std::vector<float>& memory) {
  const KvLayout& layout = kv.layout;
  const auto dims = static_cast<size_t>(layout.head_dim);
  const int64_t width = int64_t{layout.kv_heads} * layout.head_dim;
  memory.clear();
  std::vector<Bf16> row(dims);
  for (const KvSlot& slot : slots) {
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      cpu::LoadKvRows(kv,
                      {.block = slot.block,
                       .layer = layer,
                       .kv_head = head,
                       .plane = KvPlane::kValues,
                       .slot = slot.slot},
                      1, row.data());
      for (const Bf16 value : row) memory.push_back(ToFloat(value));
      if (!layout.IsRotated(KvPlane::kValues)) continue;
      cpu::RotateRows(memory.data() + memory.size() - dims, 1, layout.head_dim);
    }
  }
  return {memory.data(), {std::ssize(slots), width}};
}

ValueDeviation DeviationOf(View<const float, 2> reused, View<const float, 2> computed,
                           int64_t first_column) {
  PENSTOCK_CHECK_EQ(reused.dim(0), computed.dim(0));
  PENSTOCK_CHECK_GE(computed.dim(1), first_column + reused.dim(1));
  ValueDeviation deviation;
  double differences = 0, all = 0;
  for (int64_t token = 0; token < reused.dim(0); ++token) {
    const float* was = reused.row(token);
    const float* is = computed.row(token) + first_column;
    double difference = 0;
    for (int64_t i = 0; i < reused.dim(1); ++i) {
      const double one = double{is[i]} - double{was[i]};
      difference += one * one;
      all += double{is[i]} * double{is[i]};
    }
    differences += difference;
    deviation.tokens.push_back(static_cast<float>(difference));
  }
  deviation.relative = RelativeDeviation(differences, all);
  return deviation;
}

// Without any value there is nothing to be far from. NaN stays NaN, which is above every bound.
float RelativeDeviation(double differences, double values) {
  return differences == 0 ? 0 : static_cast<float>(std::sqrt(differences / values));
}

std::vector<uint32_t> MostDeviating(std::span<const float> tokens, int64_t count) {
  std::vector<uint32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto key = [&](uint32_t token) {
    return std::isnan(tokens[token]) ? INFINITY : tokens[token];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
  order.resize(std::min(order.size(), static_cast<size_t>(std::max<int64_t>(0, count))));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace penstock
