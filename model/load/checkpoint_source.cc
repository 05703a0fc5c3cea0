#include "model/load/checkpoint_source.h"

#include <algorithm>

namespace penstock {
namespace {

// Tables that old exporters wrote and that follow from config.json: of RoPE, and masks.
bool IsDerived(std::string_view name) {
  constexpr std::string_view kTables[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                          ".attention.bias", ".attention.masked_bias"};
  return std::ranges::any_of(kTables,
                             [&](std::string_view table) { return name.ends_with(table); });
}

// Tensors of quantised checkpoints without an effect: biases of zeros, which GPTQ's tools give to
// models without biases; scales to round activations to FP8 with, which are not rounded here; and
// scales for a cache of keys and values (QuantisationConfig).
bool IsWithoutEffect(const ModelConfig& config, std::string_view name,
                     std::span<const std::byte> bytes) {
  const QuantisationConfig& quantisation = config.quantisation;
  if (quantisation.method == QuantisationConfig::Method::kGptq && name.ends_with(".bias")) {
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }
  if (quantisation.floats && name.ends_with(".input_scale")) return true;
  return quantisation.has_kv_scales &&
         (name.ends_with(".self_attn.k_scale") || name.ends_with(".self_attn.v_scale"));
}

// Layers for multi-token prediction that are not used. Of the one that is, its copies of the
// model's embeddings and output matrix: DeepSeek-V3's paper shares both with the model (section
// 2.2), and guesses are made with the model's own.
bool IsOfUnusedMtp(const ModelConfig& config, std::string_view name) {
  for (int32_t i = 0; i < config.mtp_layers; ++i) {
    const std::string prefix = fmt::format("{}{}.", config.names.layers, config.layers + i);
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    const bool used = config.use_mtp && i == 0;
    return !used || name.starts_with("embed_tokens.") || name.starts_with("shared_head.head.");
  }
  return false;
}

}  // namespace

absl::StatusOr<TensorView> CheckpointSource::Get(const std::string& name) const {
  ASSIGN_OR_RETURN(TensorView view, tensors_.Get(name));
  const NamedBytes tensor{tensors_.StoredName(name), view.bytes};
  const bool first = names_.insert(tensor.name).second;
  if (first) used_.push_back(tensor);
  if (on_get_) on_get_(tensor, first);
  return view;
}

absl::Status CheckpointSource::CheckAllUsed(const ModelConfig& config) const {
  for (const std::string_view name : checkpoint_.tensor_names()) {
    if (names_.contains(name) || IsDerived(name)) continue;
    if (IsOfUnusedMtp(config, name)) continue;
    // A tied model whose file also contains the head: the same matrix, as transformers loads it.
    if (config.tied_embeddings && name == fmt::format("{}.weight", config.names.head)) continue;
    ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint_.Find(std::string(name)));
    if (IsWithoutEffect(config, name, tensor.bytes)) continue;
    return InvalidArgument(
        "{}/{}: tensor {} of shape [{}] has no place in a {} of {} layers as config.json describes "
        "it",
        checkpoint_.directory(), tensor.file, PrintableName(name),
        fmt::join(tensor.info->shape, ", "), config.architecture, config.layers);
  }
  return absl::OkStatus();
}

}  // namespace penstock
