#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/paged_kv.h"
#include "lab/plan/weight_meter.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Layers whose tokens attend to the last `window` positions only; 0: to all.
struct WindowedLayers {
  int32_t window = 0;
  int32_t layers = 0;
};

// The memory and arithmetic that a model needs.
struct ModelCost {
  WeightSizes weights;
  int32_t experts = 0;  // routed ones of a layer; 0: MLPs are dense
  int32_t experts_per_token = 0;
  double expert_bytes = 0;  // of all routed experts, in memory; the others are on a disk
  int32_t layers = 0;
  int32_t hidden = 0;
  double flops_per_token = 0;  // matrices, without the head
  double head_flops = 0;       // logits of one token
  // The part of weights.layers that every device of a worker has and computes (ModelShard): what
  // projects to latents. 0 to 1.
  double undivided_share = 0;
  double attention_flops_a_pair = 0;  // in one layer, for each (token, earlier token) pair
  std::vector<WindowedLayers> windows;
  KvLayout layout;  // resident, as workers lay it out
  // The memory of PositionAngles (kernels/attention.h), or of the same angles on a GPU, which only
  // workers with centred keys have.
  uint64_t angle_bytes = 0;

  uint64_t weight_bytes() const {  // in memory
    return static_cast<uint64_t>(weights.bytes() - weights.experts.bytes + expert_bytes);
  }
  // Without the recent tokens' second copy of a format with a span.
  double kv_bytes_per_token() const {
    const auto first_copies = static_cast<size_t>(layout.layers / layout.Copies());
    return static_cast<double>(first_copies * layout.LayerBytes()) / layout.block_tokens;
  }
  // Of weights.layers, what every device has: their bytes, and their operations for a token.
  double undivided_bytes() const { return weights.layers.bytes * undivided_share; }
  double undivided_flops() const {
    return 2.0 * static_cast<double>(weights.layers.elements) * undivided_share;
  }
  // The share of all experts that `tokens` tokens use, if a router prefers none of them.
  double ExpertShare(double tokens) const;
  // Bytes of the weights that a step with `tokens` tokens reads.
  double StepBytes(double tokens) const;
  // (token, earlier token) pairs of a prompt of which `cached` tokens need not be computed, and
  // positions that attention reads for one more token, each summed over layers.
  double AttendedPairs(double tokens, double cached) const;
  double AttendedTokens(double context) const;
  // Floating-point operations of such a prompt.
  double PrefillFlops(double tokens, double cached) const;
};

// `layout` as workers have it; see KvLayoutOf.
ModelCost CostOf(const ModelConfig& config, const WeightSizes& weights, const KvLayout& layout);
// INVALID_ARGUMENT if pages of this format cannot hold the model's heads.
absl::StatusOr<KvLayout> KvLayoutOf(const ModelConfig& config, int32_t block_tokens,
                                    const KvPageFormat& format);

// A form of KV, resident or on its way, and its size.
struct KvForm {
  std::string name;
  double bytes_per_token = 0;  // of all layers
  bool resident = false;       // the chosen --kv_format; else only on the wire and in tiers
};
// First the resident form, by its layout, to the byte and without the rounding of blocks. Then, for
// pages in bf16, the codecs by their nominal bits an element, which lossless ones reach on typical
// KV only. Pages of other formats travel as they are.
std::vector<KvForm> KvFormsOf(const ModelCost& cost);

}  // namespace penstock
