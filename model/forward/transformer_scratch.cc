#include "model/forward/transformer_scratch.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"
#include "model/forward/rope_angles.h"

namespace penstock {
namespace {

Buffer Floats(int64_t tokens, int64_t width) {
  return Buffer(static_cast<size_t>(tokens * width) * sizeof(float));
}

// True if outputs of attention or MLP are more than one product that is added to the residual.
bool HasBranches(const ModelConfig& config) {
  return config.experts.count > 0 || !config.names.attention_output_norm.empty() ||
         !config.names.mlp_output_norm.empty() || config.residual_multiplier != 1 ||
         config.parallel_residual;
}

// The most inputs of a dense layer's, or of an expert's, down projection; 0 if there is none.
int64_t WidestMlp(const Weights& weights) {
  int64_t widest = 0;
  for (const LayerWeights& layer : weights.layers) widest = std::max(widest, layer.down.inputs());
  return widest;
}
int64_t WidestExpert(const Weights& weights) {
  int64_t widest = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.experts.has_value()) continue;
    widest = std::max(widest, layer.experts->experts[0].down.inputs());
    if (layer.experts->shared.has_value()) {
      widest = std::max(widest, layer.experts->shared->down.inputs());
    }
  }
  return widest;
}

int64_t MtpInputs(const Weights& weights) {
  return weights.mtp.has_value() ? weights.mtp->projection.inputs() : 0;
}

std::vector<RotationScratch> Rotations(const ModelConfig& config, int64_t max_tokens) {
  std::vector<RotationScratch> rotations;
  rotations.emplace_back(config.rope, config.head_dim, max_tokens);
  if (std::ranges::count(config.layer_rope, LayerRope::kLocal) > 0) {
    rotations.emplace_back(config.local_rope, config.head_dim, max_tokens);
  }
  return rotations;
}

TransformerScratch::Angles AnglesIn(const std::vector<RotationScratch>& rotations, LayerRope rope,
                                    int64_t rows) {
  const RotationScratch& rotation = rotations[rope == LayerRope::kLocal ? 1 : 0];
  const int64_t pairs = rope == LayerRope::kNone ? 0 : rotation.pairs();
  return {.cosines = {rotation.cosines.as<float>(), {rows, pairs}},
          .sines = {rotation.sines.as<float>(), {rows, pairs}}};
}

bool HasKeyMeans(const Weights& weights) { return !weights.layers[0].key_means.empty(); }

std::map<LayerRope, PositionAngles> PositionAnglesOf(const Weights& weights) {
  std::map<LayerRope, PositionAngles> angles;
  if (!HasKeyMeans(weights)) return angles;
  const ModelConfig& config = weights.config;
  std::vector<RotationScratch> rotations = Rotations(config, config.max_position);
  for (RotationScratch& rotation : rotations) {
    for (int32_t i = 0; i < config.max_position; ++i) rotation.SetRow(i, i);
  }
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const LayerRope rope = config.RopeOf(layer);
    if (angles.contains(rope)) continue;
    const TransformerScratch::Angles all = AnglesIn(rotations, rope, config.max_position);
    angles.emplace(rope, PositionAngles(all.cosines, all.sines, config.head_dim));
  }
  return angles;
}

}  // namespace

RotationScratch::RotationScratch(const RopeConfig& rope, int32_t head_dim, int64_t max_tokens)
    : table(rope, head_dim),
      cosines(Floats(max_tokens, pairs())),
      sines(Floats(max_tokens, pairs())) {}

void RotationScratch::SetRow(int64_t row, int32_t position) {
  const AngleTable::Angles angles = table.At(position);
  std::ranges::copy(angles.cosines, cosines.as<float>() + row * pairs());
  std::ranges::copy(angles.sines, sines.as<float>() + row * pairs());
}

TransformerScratch::TransformerScratch(const Weights& weights, const Exec& exec,
                                       int32_t max_step_tokens)
    : max_tokens(max_step_tokens),
      qkv_width(weights.layers[0].qkv.outputs()),
      gated_width(WidestMlp(weights)),
      input_width(std::max<int64_t>(weights.config.hidden, weights.config.AttentionWidth())),
      rotations(Rotations(weights.config, max_tokens)),
      position_angles(PositionAnglesOf(weights)),
      residual(Floats(max_tokens, weights.config.hidden)),
      input(Floats(max_tokens, input_width)),
      branch(Floats(max_tokens, HasBranches(weights.config) ? weights.config.hidden : 0)),
      qkv(Floats(max_tokens, qkv_width)),
      gated(Floats(max_tokens, gated_width)),
      mtp_hidden(Floats(max_tokens, weights.config.use_mtp ? weights.config.hidden : 0)),
      mtp_input(Floats(max_tokens, MtpInputs(weights))),
      gemm(max_tokens,
           std::max({input_width, gated_width, WidestExpert(weights), MtpInputs(weights),
                     int64_t{weights.config.latent.query_rank}}),
           ThreadCount(exec)),
      attention(weights.config.head_dim, ThreadCount(exec), HasKeyMeans(weights)),
      latents(weights.config, exec, max_tokens),
      experts(weights, exec, max_tokens),
      selection(exec) {
  positions.reserve(static_cast<size_t>(max_tokens));
  tokens.reserve(static_cast<size_t>(max_tokens));
  slots.reserve(static_cast<size_t>(max_tokens));
}

size_t TransformerScratch::bytes() const {
  size_t bytes = residual.bytes() + input.bytes() + branch.bytes() + qkv.bytes() + gated.bytes() +
                 mtp_hidden.bytes() + mtp_input.bytes() + gemm.bytes() + attention.bytes() +
                 latents.bytes() + experts.bytes();
  for (const RotationScratch& rotation : rotations) bytes += rotation.bytes();
  for (const auto& [rope, angles] : position_angles) bytes += angles.bytes();
  return bytes;
}

TransformerScratch::Angles TransformerScratch::AnglesOf(LayerRope rope, int64_t rows) const {
  return AnglesIn(rotations, rope, rows);
}

}  // namespace penstock
