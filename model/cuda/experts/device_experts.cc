#include "model/cuda/experts/device_experts.h"

#include <algorithm>

namespace penstock {

absl::Status ExpertScratch::Allocate(const ExpertConfig& config, const DeviceExperts& layer,
                                     size_t rows) {
  static_assert(sizeof(float) == sizeof(int32_t));
  const auto create = [](cuda::DeviceBuffer& buffer, size_t words) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::Create(words * sizeof(float), "experts' rows"));
    return absl::OkStatus();
  };
  const size_t experts = config.count, pairs = rows * config.per_token;
  const size_t hidden = layer.gate_up.inputs,
               widest = std::max(hidden, size_t{1} * layer.down.inputs);
  RETURN_IF_ERROR(create(scores, rows * (experts + 1)));
  RETURN_IF_ERROR(create(chosen, pairs));
  RETURN_IF_ERROR(create(weights, pairs));
  RETURN_IF_ERROR(create(shared_weights, rows));
  RETURN_IF_ERROR(create(first, experts + 1));
  RETURN_IF_ERROR(create(pair_rows, pairs));
  RETURN_IF_ERROR(create(places, pairs));
  RETURN_IF_ERROR(create(input, pairs * widest / 2));
  return create(sums, rows * hidden);
}

std::vector<const cuda::DeviceBuffer*> ExpertScratch::DeviceBuffers() const {
  return {&scores, &chosen, &weights, &shared_weights, &first, &pair_rows, &places, &input, &sums};
}

}  // namespace penstock
