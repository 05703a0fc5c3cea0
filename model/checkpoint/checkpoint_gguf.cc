#include <utility>

#include "base/printable_name.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/expert_tensors.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_model.h"
#include "model/gguf/gguf_names.h"

namespace penstock {
namespace {

absl::StatusOr<std::string> NameOf(const GgufTensor& tensor, const std::string& path,
                                   std::string_view architecture) {
  auto name = HuggingFaceName(tensor.name);
  if (name && (HasExpertsTogether(architecture) || !HasAllExperts(*name))) return *std::move(name);
  return InvalidArgument("{}: tensor {} of shape [{}] has no place in a model of architecture {}",
                         path, PrintableName(tensor.name), fmt::join(tensor.shape, ", "),
                         architecture);
}

// The names that HuggingFaceName gives to tensors of models with experts.
void UseGgufNames(std::string_view architecture, LayerNames& names) {
  names.router = "router";
  names.experts_together = true;
  if (architecture != "gpt-oss") return;
  names.sinks = "sinks.weight";
  names.mlp_norm = "post_attention_norm";
  names.gate_up = "";
  names.gpt_oss_experts = false;
}

}  // namespace

absl::Status Checkpoint::OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(GgufModel model, GgufModel::Open(path));
  const GgufFile& contents = model.contents();
  ASSIGN_OR_RETURN(const std::string architecture, GgufArchitecture(contents));
  ASSIGN_OR_RETURN(const int32_t head_dim, GgufHeadDim(contents));
  if (HasExpertsTogether(architecture)) UseGgufNames(architecture, config_.names);
  std::vector<SafetensorsHeader> headers;
  for (const GgufModel::Part& part : model.parts()) {
    headers.push_back({.data_begin = part.data_begin});
  }
  for (const GgufTensor& tensor : contents.tensors) {
    if (IsGgufTable(tensor.name)) continue;
    ASSIGN_OR_RETURN(const std::string name, NameOf(tensor, path, architecture));
    auto& tensors = headers[tensor.part].tensors;
    const bool interleaved = HasInterleavedRows(architecture, tensor.name);
    places_[name] = {.shard = tensor.part,
                     .tensor = tensors.size(),
                     .interleaved_head = interleaved ? head_dim : 0};
    tensors.push_back({.name = name,
                       .dtype = std::string(tensor.type->name),
                       .shape = tensor.shape,
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
