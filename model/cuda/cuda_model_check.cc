#include "model/cuda/cuda_model_check.h"

#include <algorithm>

#include "kernels/bf16.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/latents/latents.h"
#include "kernels/cuda/row_params.h"

namespace penstock {
namespace {

// The kernel that rotates a part of each head exchanges whole lanes of up to 4 dimensions.
bool RotatesUnevenly(const RopeConfig& rope) { return rope.rotary_dims % 8 != 0; }

// The CPU's products have these activations only, and so has every family.
bool HasOtherActivation(const ModelConfig& config) {
  return config.activation == (config.names.HasGate() ? Activation::kGelu : Activation::kSilu);
}

// The first part of a mixture of experts that the kernels do not implement. Empty if there is none.
std::string_view UnsupportedExperts(const ExpertConfig& experts) {
  if (experts.count == 0) return {};
  const bool clamped = experts.gate_limit != 0;
  if (experts.biases && !clamped) return "experts with biases and a plain gate";
  if (clamped && experts.shared_intermediate > 0) {
    return "a shared expert beside those with a clamped gate (swiglu_limit)";
  }
  if (experts.groups > cuda::kExpertGroupsMax) return "more than 32 groups of experts (n_group)";
  if (experts.count > cuda::kExpertsMax) return "more than 512 experts (num_experts)";
  if (experts.per_token > cuda::kExpertsPerTokenMax) {
    return "more than 32 experts for a token (num_experts_per_tok)";
  }
  return {};
}

// The same of latent attention.
std::string_view UnsupportedLatents(const ModelConfig& config) {
  if (!config.HasLatents()) return {};
  if (config.latent.rank != cuda::kLatentRank) {
    return "latents of other than 512 elements (kv_lora_rank)";
  }
  if (config.latent.rope_dims != cuda::kLatentRopeDims) {
    return "rotated keys of other than 64 elements beside latents (qk_rope_head_dim)";
  }
  return {};
}

// The first part of `config` that differs from Llama's where the kernels do not; empty: none.
// Every field that model_family.cc sets must be here or in the kernels.
std::string_view UnsupportedPart(const ModelConfig& config, int ranks) {
  if (config.hidden > cuda::kHiddenMax) return "hidden_size above 16384";
  if (const auto part = UnsupportedLatents(config); !part.empty()) return part;
  if (const auto part = UnsupportedExperts(config.experts); !part.empty()) return part;
  if (HasOtherActivation(config)) return "another activation of its MLP (hidden_act)";
  if (RotatesUnevenly(config.rope) || RotatesUnevenly(config.local_rope)) {
    return "a partial_rotary_factor that rotates other than a multiple of 8 dimensions";
  }
  if (config.qk_norm == QkNorm::kWidth && ranks > 1) {
    return "norms over the heads of all GPUs (tensor_parallel above 1)";
  }
  return {};
}

// The kernels of pages with a span have neither windows nor other scores than products.
std::string_view PartWithoutSpans(const ModelConfig& config) {
  const auto& windows = config.sliding_window;
  if (config.HasLatents()) return "latents (multi-head latent attention)";
  if (std::ranges::count(windows, 0) != std::ssize(windows)) return "sliding windows";
  if (config.attention_cap != 0) return "a cap of attention scores (attn_logit_softcapping)";
  if (config.attention_sinks) return "attention sinks";
  return {};
}

// Codes of a table are the table's integers on a device, but for those of MXFP4. Only integers of 8
// bits have groups of 16.
cuda::WeightCode DeviceCodeOf(const QuantisedFormat& format) {
  using enum cuda::WeightCode;
  if (format.e4m3()) return kE4m3;
  if (format.code == CodeType::kE2m1 && format.scale == ScaleType::kBf16) return kE2m1;
  return format.bits == 4 && format.table() == nullptr && format.group >= 32 ? kInt4 : kInt8;
}

}  // namespace

absl::Status CheckCudaSpans(const KvPageFormat& format, const ModelConfig& config) {
  if (format.span == 0) return absl::OkStatus();
  const std::string_view part = PartWithoutSpans(config);
  if (part.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "kv_format is {}, and {} has {}, with which pages on GPUs have no spans; use {}, or "
      "--device=cpu",
      KvPageFormatName(format), config.architecture, part, KvDtypeName(format.dtype));
}

std::optional<cuda::CodeForm> CodeFormOf(const QuantisedFormat& format, cuda::InputOrder order) {
  cuda::CodeForm form{.code = DeviceCodeOf(format),
                      .order = order,
                      .zeros = format.zeros,
                      .offsets = format.offsets,
                      .zero = format.zero(),
                      .group = std::min(format.group, cuda::kCodeInputs)};
  if (form.group < 32 && form.code != cuda::WeightCode::kInt8) return std::nullopt;
  const bool half = format.scale == ScaleType::kF16 || format.scale == ScaleType::kBf16;
  form.pairs = form.code == cuda::WeightCode::kInt4 && half && !format.offsets;
  if (form.code == cuda::WeightCode::kE2m1) form.zero = 0;
  return form;
}

double GpuRowBytes(const QuantisedFormat& format, int64_t inputs) {
  const auto form = CodeFormOf(format);
  if (!form) return static_cast<double>(sizeof(Bf16)) * static_cast<double>(inputs);
  return static_cast<double>(cuda::ChunksOf(inputs) * form->chunk_bytes()) / cuda::kCodePanel;
}

absl::Status CheckCudaModel(const ModelConfig& config, int ranks) {
  const std::string_view part = UnsupportedPart(config, ranks);
  if (part.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "{} has {}, which the CUDA kernels do not implement; use --device=cpu instead",
      config.architecture, part);
}

}  // namespace penstock
