#include "model/cuda/cuda_inputs.h"

namespace penstock {

AttentionInputs AddAttention(const CudaAttention& attention, StepInputs& inputs) {
  AttentionInputs at{.lengths = inputs.Add(attention.lengths),
                     .prefills = inputs.Add(attention.prefills),
                     .tiles = inputs.Add(attention.tiles),
                     .tables = inputs.Add(attention.tables)};
  for (const cuda::DecodePlan& plan : attention.decode) {
    at.items.push_back(inputs.Add(plan.items));
    at.split_counts.push_back(inputs.Add(plan.split_counts));
  }
  return at;
}

}  // namespace penstock
