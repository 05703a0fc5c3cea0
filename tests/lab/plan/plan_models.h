#pragma once

#include "lab/plan/capacity_plan.h"
#include "model/checkpoint/model_family.h"

namespace penstock {

inline ModelConfig Llama8b() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 32,
          .hidden = 4096,
          .intermediate = 14336,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 128256,
          .max_position = 131072};
}

inline ModelConfig Llama70b() {
  ModelConfig config = Llama8b();
  config.layers = 80;
  config.hidden = 8192;
  config.intermediate = 28672;
  config.heads = 64;
  return config;
}

// DeepSeek-V2-Lite.
inline ModelConfig V2Lite() {
  ModelConfig config{.architecture = "DeepseekV2ForCausalLM",
                     .layers = 27,
                     .hidden = 2048,
                     .intermediate = 10944,
                     .heads = 16,
                     .kv_heads = 1,
                     .head_dim = 576,
                     .vocab = 102400,
                     .max_position = 163840};
  config.names = FindModelFamily("DeepseekV2ForCausalLM")->names;
  config.latent = {.rank = 512, .plain_dims = 128, .rope_dims = 64, .value_dims = 128};
  config.experts = {.count = 64,
                    .per_token = 6,
                    .intermediate = 1408,
                    .shared_intermediate = 2816,
                    .shared_gate = false};
  config.experts.dense.assign(27, false);
  config.experts.dense[0] = true;
  return config;
}

inline WeightSizes WeightsOf(const ModelConfig& config, WeightPolicy policy = {}) {
  return MeasureWeights(config, FormsOf(policy), nullptr).value();
}

inline PlanRequest RequestFor(const ModelConfig& model, const char* hardware) {
  return {.model = model,
          .weights = WeightsOf(model),
          .hardware = FindHardware(hardware).value(),
          .link_bytes_per_s = 50e9,
          .contexts = {4096, 131072},
          .traffic = {.requests_per_s = 20, .prompt_tokens = 2048, .answer_tokens = 256}};
}

inline PlanRequest Llama8bOnH200() { return RequestFor(Llama8b(), "H200"); }

}  // namespace penstock
