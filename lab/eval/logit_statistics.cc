#include "lab/eval/logit_statistics.h"

#include <algorithm>
#include <cmath>

namespace penstock {

double LogSum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - top);
  return top + std::log(sum);
}

uint32_t Best(std::span<const float> logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double Divergence(std::span<const float> exact, std::span<const float> other) {
  const double exact_sum = LogSum(exact), other_sum = LogSum(other);
  double divergence = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double log_p = exact[i] - exact_sum;
    divergence += std::exp(log_p) * (log_p - (other[i] - other_sum));
  }
  return std::max(divergence, 0.0);
}

Estimate EstimateOf(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, variance = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values)
    variance += (value - mean) * (value - mean) / std::max(count - 1, 1.0);
  return {mean, 1.96 * std::sqrt(variance / count)};
}

}  // namespace penstock
