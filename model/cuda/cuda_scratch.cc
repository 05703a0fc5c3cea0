#include "model/cuda/cuda_scratch.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/quantised_gemm.h"

namespace penstock {

absl::Status CudaScratch::Allocate(const ModelConfig& config, const CudaWeights& weights,
                                   const cuda::Products& products, size_t rows) {
  angles = AngleTable(config.rope, config.head_dim);
  if (std::ranges::count(config.layer_rope, LayerRope::kLocal) > 0) {
    local_angles = AngleTable(config.local_rope, config.head_dim);
  }
  const size_t hidden = config.hidden, query_width = static_cast<size_t>(QueryWidth(config));
  size_t input_width = std::max(hidden, query_width), product_width = 0, expanded_bytes = 0;
  for (const CudaMatrix* m : weights.Matrices()) {
    input_width = std::max<size_t>(input_width, m->weight.inputs);
    product_width =
        std::max<size_t>(product_width, size_t{1} * products.Slices(m->weight) * m->weight.outputs);
    if (m->weight.quantised()) expanded_bytes = std::max(expanded_bytes, ExpandedBytes(m->weight));
  }
  RETURN_IF_ERROR(Grow(residual, rows * hidden * sizeof(float), "residual"));
  RETURN_IF_ERROR(Grow(last_residual, rows * hidden * sizeof(float), "residual"));
  RETURN_IF_ERROR(Grow(input, rows * input_width * sizeof(Bf16), "activations"));
  RETURN_IF_ERROR(Grow(queries, rows * query_width * sizeof(Bf16), "queries"));
  RETURN_IF_ERROR(Grow(last_queries, rows * query_width * sizeof(Bf16), "queries"));
  RETURN_IF_ERROR(Grow(expanded, expanded_bytes, "an expanded matrix"));
  size_t product_floats = rows * product_width;
  std::vector<const DeviceExperts*> with_experts;
  for (const CudaLayer& layer : weights.layers) {
    if (!layer.experts.has_value()) continue;
    with_experts.push_back(&*layer.experts);
    const auto pairs = static_cast<int64_t>(rows) * config.experts.per_token;
    for (const DeviceMatrices* matrices : {&layer.experts->gate_up, &layer.experts->down}) {
      product_floats =
          std::max<size_t>(product_floats, cuda::GroupedFloats(matrices->weight, pairs));
    }
  }
  if (!with_experts.empty()) {
    RETURN_IF_ERROR(experts.Allocate(config.experts, with_experts, rows));
  }
  if (config.HasLatents()) RETURN_IF_ERROR(latents.Allocate(config, rows));
  return Grow(product, product_floats * sizeof(float), "products");
}

std::vector<const cuda::DeviceBuffer*> CudaScratch::DeviceBuffers() const {
  std::vector<const cuda::DeviceBuffer*> all = experts.DeviceBuffers();
  std::ranges::copy(latents.DeviceBuffers(), std::back_inserter(all));
  all.insert(all.end(), {&residual, &last_residual, &input, &queries, &last_queries, &product,
                         &inputs, &expanded, &wide_attention, &narrow_attention, &draws, &sampled});
  return all;
}

std::vector<const void*> CudaScratch::Addresses() const {
  std::vector<const void*> addresses;
  for (const cuda::DeviceBuffer* buffer : DeviceBuffers()) addresses.push_back(buffer->as<void>());
  return addresses;
}

}  // namespace penstock
