#include "model/cuda/experts/expert_pass.h"

#include "kernels/cuda/row_ops.h"

namespace penstock {

// Leaves the choice in the scratch memory: weights, and the pairs sorted by expert.
void ExpertPass::Choose(const Bf16* input) const {
  const auto& [config, layer, s, product, rows, stream] = parts_;
  const int32_t count = config.count + (layer.shared_gate ? 1 : 0);
  cuda::Score({.input = input,
               .vectors = layer.router.as<float>(),
               .bias = layer.router_bias.as<float>(),
               .scores = s.scores.as<float>(),
               .rows = rows,
               .count = count,
               .hidden = layer.gate_up.weight.inputs},
              stream);
  cuda::Route({.scores = s.scores.as<float>(),
               .choice_bias = layer.choice_bias.as<float>(),
               .chosen = s.chosen.as<int32_t>(),
               .weights = s.weights.as<float>(),
               .shared_weights = layer.shared ? s.shared_weights.as<float>() : nullptr,
               .count = count,
               .experts = config.count,
               .per_token = config.per_token,
               .normalise = config.normalise,
               .sigmoid = config.sigmoid,
               .groups = config.groups,
               .kept_groups = config.kept_groups,
               .scale = config.scale},
              rows, stream);
  cuda::Group({.chosen = s.chosen.as<int32_t>(),
               .pairs = rows * config.per_token,
               .per_token = config.per_token,
               .experts = config.count,
               .first = s.first.as<int32_t>(),
               .rows = s.pair_rows.as<int32_t>(),
               .places = s.places.as<int32_t>(),
               .owners = s.owners.as<int32_t>()},
              stream);
}

cuda::GroupedRows ExpertPass::Rows() const {
  return {.input = parts_.scratch.input.as<Bf16>(),
          .first = parts_.scratch.first.as<int32_t>(),
          .rows = parts_.rows,
          .pairs = parts_.rows * parts_.config.per_token};
}

// Into the input of the next product.
void ExpertPass::Activate(const cuda::Product& product, int32_t pairs) const {
  auto* output = parts_.scratch.input.as<Bf16>();
  if (parts_.config.gate_limit == 0) {
    return cuda::SiluGate({.product = product, .output = output}, pairs, parts_.stream);
  }
  cuda::ClampedGate({.product = product,
                     .bias = parts_.layer.gate_up.bias.as<float>(),
                     .owners = parts_.scratch.owners.as<int32_t>(),
                     .limit = parts_.config.gate_limit,
                     .output = output},
                    pairs, parts_.stream);
}

cuda::Product ExpertPass::Multiply(const DeviceMatrices& matrices) const {
  return cuda::GroupedGemm(matrices.weight, Rows(),
                           parts_.scratch.RoomFor(matrices, parts_.product), parts_.stream);
}

void ExpertPass::AddRouted(const Bf16* input) const {
  const auto& [config, layer, s, product, rows, stream] = parts_;
  Choose(input);
  const int32_t pairs = rows * config.per_token;
  cuda::GatherRows({.input = reinterpret_cast<const uint32_t*>(input),
                    .output = s.input.as<uint32_t>(),
                    .from = s.pair_rows.as<int32_t>(),
                    .width = layer.gate_up.weight.inputs / 2},
                   pairs, stream);
  Activate(Multiply(layer.gate_up), pairs);
  cuda::Mix({.product = Multiply(layer.down),
             .bias = layer.down.bias.as<float>(),
             .chosen = s.chosen.as<int32_t>(),
             .places = s.places.as<int32_t>(),
             .weights = s.weights.as<float>(),
             .per_token = config.per_token,
             .output = s.sums.as<float>()},
            rows, stream);
}

void ExpertPass::AddShared(const cuda::Product& product) const {
  cuda::Mix({.product = product,
             .weights = parts_.scratch.shared_weights.as<float>(),
             .per_token = 1,
             .output = parts_.scratch.sums.as<float>(),
             .adds = true},
            parts_.rows, parts_.stream);
}

cuda::Product ExpertPass::sums() const {
  return {.data = parts_.scratch.sums.as<float>(),
          .slices = 1,
          .width = parts_.layer.gate_up.weight.inputs};
}

}  // namespace penstock
