#include "model/cuda/latents/device_latents.h"

namespace penstock {

absl::Status LatentScratch::Allocate(const ModelConfig& config, size_t rows) {
  const auto width = static_cast<size_t>(int64_t{config.heads} * config.latent.rank);
  ASSIGN_OR_RETURN(queries,
                   cuda::DeviceBuffer::Create(rows * width * sizeof(Bf16), "queries of latents"));
  ASSIGN_OR_RETURN(sums,
                   cuda::DeviceBuffer::Create(rows * width * sizeof(Bf16), "sums of latents"));
  return absl::OkStatus();
}

}  // namespace penstock
