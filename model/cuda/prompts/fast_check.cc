#include "model/cuda/prompts/fast_check.h"

#include <algorithm>
#include <string_view>

namespace penstock {
namespace {

// The first part of a model's attention that the library's kernel lacks; empty: none.
std::string_view PartWithoutLibrary(const ModelConfig& config) {
  if (config.HasLatents()) return "latent attention (kv_lora_rank)";
  if (config.head_dim != 64 && config.head_dim != 128) {
    return "heads of other than 64 or 128 elements (head_dim)";
  }
  if (config.attention_sinks) return "attention sinks";
  if (config.attention_cap != 0) return "a soft cap of scores (attn_logit_softcapping)";
  return {};
}

}  // namespace

absl::Status CheckFastPrompts(const ModelConfig& config, const cuda::DeviceInfo& info) {
  RETURN_IF_ERROR(cuda::library::CheckPrefillDevice(info));
  const std::string_view part = PartWithoutLibrary(config);
  if (part.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "numerics is fast, and {} has {}, which the library's prefill attention does not implement; "
      "use numerics=exact",
      config.architecture, part);
}

absl::Status CheckFastPages(KvDtype dtype) {
  if (dtype == KvDtype::kBf16) return absl::OkStatus();
  return FailedPrecondition(
      "numerics is fast, and kv_format is {}; the library's prefill attention reads pages of bf16 "
      "only: use kv_format=bf16, or numerics=exact",
      KvDtypeName(dtype));
}

cuda::library::PrefillModel PrefillModelOf(const ModelConfig& config, int32_t page_tokens) {
  const auto& windows = config.sliding_window;
  const auto full = std::ranges::count(windows, 0);
  return {.head_dim = config.head_dim,
          .group = config.heads / config.kv_heads,
          .page_tokens = page_tokens,
          .full = windows.empty() || full > 0,
          .window = full < std::ssize(windows)};
}

}  // namespace penstock
