#include "model/cuda/experts/device_experts.h"

#include <algorithm>

namespace penstock {

namespace {

// The room for expanded matrices, so that a product of them keeps all processors busy.
constexpr size_t kExpandedBytes = size_t{256} << 20;

size_t ExpandedBytes(const DeviceMatrices& matrices) {
  if (!matrices.weight.quantised()) return 0;
  const size_t each = matrices.ExpandedBytes(), experts = matrices.weight.experts;
  return each * std::clamp<size_t>(kExpandedBytes / each, 1, experts);
}

}  // namespace

absl::Status ExpertScratch::Allocate(const ExpertConfig& config,
                                     const std::vector<const DeviceExperts*>& layers, size_t rows) {
  static_assert(sizeof(float) == sizeof(int32_t));
  const auto create = [](cuda::DeviceBuffer& buffer, size_t words) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::Create(words * sizeof(float), "experts' rows"));
    return absl::OkStatus();
  };
  const size_t experts = config.count, pairs = rows * config.per_token;
  const size_t hidden = layers[0]->gate_up.weight.inputs,
               widest = std::max(hidden, size_t{1} * layers[0]->down.weight.inputs);
  size_t expanded_bytes = 0;
  for (const DeviceExperts* layer : layers) {
    expanded_bytes =
        std::max({expanded_bytes, ExpandedBytes(layer->gate_up), ExpandedBytes(layer->down)});
  }
  RETURN_IF_ERROR(create(scores, rows * (experts + 1)));
  RETURN_IF_ERROR(create(chosen, pairs));
  RETURN_IF_ERROR(create(weights, pairs));
  RETURN_IF_ERROR(create(shared_weights, rows));
  RETURN_IF_ERROR(create(first, experts + 1));
  RETURN_IF_ERROR(create(pair_rows, pairs));
  RETURN_IF_ERROR(create(places, pairs));
  RETURN_IF_ERROR(create(owners, pairs));
  RETURN_IF_ERROR(create(input, pairs * widest / 2));
  if (expanded_bytes > 0) RETURN_IF_ERROR(create(expanded, expanded_bytes / sizeof(float)));
  return create(sums, rows * hidden);
}

cuda::GroupedRoom ExpertScratch::RoomFor(const DeviceMatrices& matrices, float* output) const {
  return {.output = output,
          .expanded = expanded.as<Bf16>(),
          .expanded_experts = static_cast<int32_t>(expanded.bytes() / matrices.ExpandedBytes())};
}

std::vector<const cuda::DeviceBuffer*> ExpertScratch::DeviceBuffers() const {
  return {&scores, &chosen, &weights, &shared_weights, &first, &pair_rows,
          &places, &owners, &input,   &expanded,       &sums};
}

}  // namespace penstock
