#include "model/cuda/mtp/mtp_pass.h"

#include "kernels/cuda/row_ops.h"

namespace penstock {

// A look-up of embeddings makes f32 rows of bf16 ones.
void MtpPass::GatherStates(const Bf16* all, const uint32_t* from) const {
  cuda::Embedding({.tokens = from, .table = all, .output = parts_.states, .hidden = parts_.hidden},
                  parts_.rows, parts_.stream);
}

void MtpPass::PutStates(const float* states, int64_t first, int64_t count) const {
  cuda::CopyOnDevice(parts_.states + first * parts_.hidden, states,
                     static_cast<size_t>(count * parts_.hidden) * sizeof(float), parts_.stream);
}

void MtpPass::Join(float* embeddings, const int32_t* order, Bf16* normed, Bf16* output) const {
  const auto norm = [&](float* rows, const cuda::DeviceBuffer& weight, int64_t first) {
    cuda::AddNorm({.residual = rows,
                   .weight = weight.as<float>(),
                   .output = normed + first * parts_.hidden,
                   .hidden = parts_.hidden,
                   .epsilon = parts_.epsilon},
                  parts_.rows, parts_.stream);
  };
  norm(embeddings, parts_.weights.token_norm, 0);
  norm(parts_.states, parts_.weights.hidden_norm, parts_.rows);
  cuda::GatherRows({.input = reinterpret_cast<const uint32_t*>(normed),
                    .output = reinterpret_cast<uint32_t*>(output),
                    .from = order,
                    .width = parts_.hidden / 2},
                   2 * parts_.rows, parts_.stream);
}

}  // namespace penstock
