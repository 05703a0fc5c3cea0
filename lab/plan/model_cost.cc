#include "lab/plan/model_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/kv_rows.h"
#include "model/weights/page_layout.h"

namespace penstock {
namespace {

struct Codec {
  const char* name;
  double bits;  // an element
  bool exact = false;
};
constexpr Codec kCodecs[] = {{"lx16", 12, true}, {"lxr", 11.2, true}, {"i8", 8.25},
                             {"f8", 8},          {"k8v4", 6.25},      {"i4r", 4.25}};
constexpr double kPlainBits = 16;

std::vector<WindowedLayers> WindowsOf(const ModelConfig& config) {
  std::map<int32_t, int32_t> counts;
  for (int32_t layer = 0; layer < config.layers; ++layer) ++counts[config.WindowOf(layer)];
  std::vector<WindowedLayers> windows;
  for (const auto& [window, layers] : counts) windows.push_back({window, layers});
  return windows;
}

// As a worker makes them: for each kind of rotation, all positions in whole tiles.
uint64_t AngleBytes(const ModelConfig& config, const KvLayout& layout) {
  if (!layout.centred) return 0;
  constexpr uint64_t kTile = 64;
  std::set<LayerRope> kinds;
  for (int32_t layer = 0; layer < config.layers; ++layer) kinds.insert(config.RopeOf(layer));
  const auto positions = static_cast<uint64_t>(config.max_position);
  const uint64_t position_bytes = static_cast<uint64_t>(config.head_dim) * sizeof(Bf16);
  return kinds.size() * ((positions + kTile - 1) / kTile * kTile) * position_bytes;
}

double UndividedShare(const ModelConfig& config, const WeightPart& layers) {
  if (!config.HasLatents()) return 0;
  const LatentConfig& latent = config.latent;
  const double rows = latent.rank + latent.rope_dims + latent.query_rank;
  return config.layers * rows * config.hidden / static_cast<double>(layers.elements);
}

// Pairs of tokens [0, tokens), each with itself and the earlier ones in its window.
double PairsOf(double tokens, int32_t window) {
  const double short_of = window > 0 ? std::min<double>(tokens, window) : tokens;
  return short_of * (short_of + 1) / 2 + (tokens - short_of) * window;
}

}  // namespace

double ModelCost::ExpertShare(double tokens) const {
  if (experts == 0) return 0;
  return 1 - std::pow(1 - static_cast<double>(experts_per_token) / experts, tokens);
}

double ModelCost::StepBytes(double tokens) const {
  return weights.layers.bytes + weights.vectors.bytes + weights.head.bytes +
         weights.experts.bytes * ExpertShare(tokens);
}

double ModelCost::AttendedPairs(double tokens, double cached) const {
  double pairs = 0;
  for (const WindowedLayers& group : windows) {
    pairs += group.layers * (PairsOf(tokens, group.window) - PairsOf(cached, group.window));
  }
  return pairs;
}

double ModelCost::AttendedTokens(double context) const {
  double tokens = 0;
  for (const WindowedLayers& group : windows) {
    tokens += group.layers * (group.window > 0 ? std::min<double>(context, group.window) : context);
  }
  return tokens;
}

double ModelCost::PrefillFlops(double tokens, double cached) const {
  const double computed = std::max(0.0, tokens - cached);
  return computed * flops_per_token + AttendedPairs(tokens, cached) * attention_flops_a_pair +
         head_flops;
}

ModelCost CostOf(const ModelConfig& config, const WeightSizes& weights, const KvLayout& layout) {
  ModelCost cost{.weights = weights,
                 .experts = config.experts.count,
                 .experts_per_token = config.experts.per_token,
                 .expert_bytes = weights.experts.bytes,
                 .layers = config.layers,
                 .hidden = config.hidden,
                 .undivided_share = UndividedShare(config, weights.layers),
                 .windows = WindowsOf(config),
                 .layout = layout,
                 .angle_bytes = AngleBytes(config, layout)};
  const double used =
      cost.experts > 0 ? static_cast<double>(cost.experts_per_token) / cost.experts : 0;
  cost.flops_per_token = 2.0 * (static_cast<double>(weights.layers.elements) +
                                used * static_cast<double>(weights.experts.elements));
  cost.head_flops = 2.0 * static_cast<double>(weights.head.elements);
  cost.attention_flops_a_pair = 2.0 * config.heads * (layout.head_dim + layout.ValueDim());
  return cost;
}

absl::StatusOr<KvLayout> KvLayoutOf(const ModelConfig& config, int32_t block_tokens,
                                    const KvPageFormat& format) {
  const std::string name = KvPageFormatName(format);
  if (!HoldsHeads(format.dtype, config.head_dim)) {
    return InvalidArgument(
        "--kv-format={} needs head dimensions that are multiples of 16 up to {}; this model has "
        "{}; use bf16",
        name, kQuantisedHeadMax, config.head_dim);
  }
  if (config.HasLatents() && format.dtype != KvDtype::kBf16) {
    return InvalidArgument("--kv-format={} does not hold this model's latents; use bf16", name);
  }
  KvLayout layout = PageLayoutOf(config);
  layout.block_tokens = block_tokens;
  if (format.span > 0 && (layout.window > 0 || !layout.group.empty())) {
    return InvalidArgument(
        "--kv-format={} has a span, which layers with sliding windows do not take; use {}", name,
        KvDtypeName(format.dtype));
  }
  return layout.In(format);
}

std::vector<KvForm> KvFormsOf(const ModelCost& cost) {
  const KvLayout& layout = cost.layout;
  std::vector<KvForm> forms = {
      {KvPageFormatName(layout.format()), cost.kv_bytes_per_token(), true}};
  if (layout.dtype != KvDtype::kBf16) return forms;
  const double rows = 1.0 * layout.Planes() * layout.layers * layout.kv_heads;
  for (const Codec& codec : kCodecs) {
    const double kept = codec.exact ? 0 : layout.latent_rope_dim;  // as they are
    const double bits = (layout.head_dim - kept) * codec.bits + kept * kPlainBits;
    forms.push_back({codec.name, rows * bits / 8, false});
  }
  return forms;
}

}  // namespace penstock
