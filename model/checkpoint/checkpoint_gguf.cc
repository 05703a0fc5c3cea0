#include <utility>
#include <vector>

#include "base/printable_name.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/expert_tensors.h"
#include "model/gguf/file/gguf_model.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_family.h"
#include "model/gguf/gguf_names.h"

namespace penstock {
namespace {

absl::StatusOr<std::string> NameOf(const GgufTensor& tensor, const std::string& path,
                                   std::string_view architecture, bool experts) {
  auto name = HuggingFaceName(tensor.name);
  if (name && (experts || !HasAllExperts(*name))) return *std::move(name);
  return InvalidArgument("{}: tensor {} of shape [{}] has no place in a model of architecture {}",
                         path, PrintableName(tensor.name), fmt::join(tensor.shape, ", "),
                         architecture);
}

// The names that HuggingFaceName gives to tensors of models with experts.
void UseExpertNames(LayerNames& names) {
  names.gate_up = "";
  names.router = "router";
  names.experts_together = true;
  names.shared = "shared_experts";
}

// The names that HuggingFaceName gives to norms, where the model has them.
void UseNormNames(const LayerNames& own, bool two_norms, LayerNames& names) {
  if (own.attention_norm.empty()) names.attention_norm = "";
  if (own.mlp_norm.empty()) names.mlp_norm = "";
  if (!own.attention_output_norm.empty()) names.attention_output_norm = "post_attention_norm";
  if (!own.mlp_output_norm.empty()) names.mlp_output_norm = "post_ffw_norm";
  if (two_norms) names.attention_norm = "ln_attn";
  // Falcon's: beside ln_attn, or in its place.
  if (two_norms || (own.mlp_norm == own.attention_norm && !own.mlp_norm.empty())) {
    names.mlp_norm = LayerNames().attention_norm;
  }
}

// The names that HuggingFaceName gives to tensors. Converters transpose GPT-2's matrices, and put
// queries, keys and values one behind the other.
LayerNames GgufNames(const GgufFile& file, std::string_view architecture,
                     const ModelConfig& config) {
  const LayerNames& own = config.names;
  LayerNames names;
  UseNormNames(own, file.FindTensor("blk.0.attn_norm_2.weight") != nullptr, names);
  if (file.FindTensor("blk.0.attn_qkv.weight") != nullptr) names.qkv = "qkv_proj";
  if (!own.positions.empty()) names.positions = "model.embed_positions";
  if (!own.HasGate()) names.gate = "";
  if (!own.gate_up.empty()) names.gate_up = names.up;
  if (config.experts.count > 0) UseExpertNames(names);
  names.sinks = "sinks.weight";
  names.latent_halves = config.HasLatents() && file.FindTensor("blk.0.attn_kv_b.weight") == nullptr;
  if (FindGgufFamily(architecture)->post_attention_is_mlp_norm) {
    names.mlp_norm = "post_attention_norm";
  }
  return names;
}

// The shape of a matrix. The gate of an expert that all tokens use is a vector in files. k_b_proj
// and v_b_proj have one for each head, the first transposed: heads follow each other.
absl::StatusOr<std::vector<int64_t>> ShapeOf(const GgufTensor& tensor, std::string_view name,
                                             const ModelConfig& config, const std::string& path) {
  if (name.ends_with(".shared_experts_gate.weight") && tensor.shape.size() == 1) {
    return std::vector<int64_t>{1, tensor.shape[0]};
  }
  const LatentConfig& latent = config.latent;
  const bool keys = name.ends_with(".k_b_proj.weight");
  if (!keys && !name.ends_with(".v_b_proj.weight")) return tensor.shape;
  const std::vector<int64_t> expected = {config.heads, keys ? latent.rank : latent.value_dims,
                                         keys ? latent.plain_dims : latent.rank};
  if (tensor.shape == expected) return std::vector<int64_t>{expected[0] * expected[1], expected[2]};
  return InvalidArgument("{}: tensor {} has shape [{}], allowed is [{}]", path,
                         PrintableName(tensor.name), fmt::join(tensor.shape, ", "),
                         fmt::join(expected, ", "));
}

}  // namespace

absl::Status Checkpoint::OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(GgufModel model, GgufModel::Open(path));
  const GgufFile& contents = model.contents();
  ASSIGN_OR_RETURN(const std::string architecture, GgufArchitecture(contents));
  config_.names = GgufNames(contents, architecture, config_);
  config_.norm_offset = 0;  // converters add it, in f32
  const bool has_experts = config_.experts.count > 0;
  std::vector<SafetensorsHeader> headers;
  for (const GgufModel::Part& part : model.parts()) {
    headers.push_back({.data_begin = part.data_begin});
  }
  for (const GgufTensor& tensor : contents.tensors) {
    if (IsGgufTable(architecture, tensor.name)) continue;
    ASSIGN_OR_RETURN(const std::string name, NameOf(tensor, path, architecture, has_experts));
    ASSIGN_OR_RETURN(std::vector<int64_t> shape, ShapeOf(tensor, name, config_, path));
    auto& tensors = headers[tensor.part].tensors;
    const bool interleaved = HasInterleavedRows(architecture, tensor.name);
    places_[name] = {.shard = tensor.part,
                     .tensor = tensors.size(),
                     .interleaved_head = interleaved ? config_.head_dim : 0};
    tensors.push_back({.name = name,
                       .dtype = std::string(tensor.type->name),
                       .shape = std::move(shape),
                       .begin = tensor.begin,
                       .end = tensor.end});
  }
  std::vector<GgufModel::Part> parts = model.TakeParts();
  for (size_t i = 0; i < parts.size(); i++) {
    shards_.push_back({std::move(parts[i].name), std::move(parts[i].file), std::move(headers[i])});
  }
  return absl::OkStatus();
}

}  // namespace penstock
