#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/paged_kv.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The memory and arithmetic that a model needs, from its config.json alone.
struct ModelCost {
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;  // in bf16
  // The bytes of these that every decode step reads: all but unused embedding rows and experts. A
  // batch reads more experts than one token does.
  uint64_t step_bytes = 0;
  double flops_per_token = 0;         // matrices, without the head
  double head_flops = 0;              // logits of one token
  double attention_flops_a_pair = 0;  // for each (token, earlier token) pair
  int32_t window = 0;                 // the shortest sliding window of all layers; 0: none
  KvLayout layout;                    // resident, as workers lay it out

  // Floating-point operations of a prompt of which `cached` tokens need not be computed.
  double PrefillFlops(double tokens, double cached) const;
};

ModelCost CostOf(const ModelConfig& config, int32_t block_tokens);

// A form of KV, resident or on its way, and its size.
struct KvForm {
  std::string name;
  double bytes_per_token = 0;  // of all layers
  bool resident = false;       // else only on the wire and in tiers
};
// Residents by their layout, to the byte and without the rounding of blocks; codecs by their
// nominal bits an element, which lossless ones reach on typical KV only.
std::vector<KvForm> KvFormsOf(const ModelCost& cost);

}  // namespace penstock
