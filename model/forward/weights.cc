#include "model/forward/weights.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr char kBf16Name[] = "bf16";

void AddOnce(const std::string& name, std::vector<std::string>& names) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

// True if products with matrices of the form round activations to integers.
bool MultipliesIntegers(const std::string& form) {
  return form != kBf16Name && !form.starts_with("fp8");
}

void AddForms(const WeightMatrix& matrix, std::vector<std::string>& names) {
  const StoredMatrix* stored = matrix.stored();
  if (matrix.packed() != nullptr || (stored != nullptr && stored->formats().empty())) {
    AddOnce(kBf16Name, names);
  }
  if (stored != nullptr) {
    for (const QuantisedFormat& format : stored->formats()) AddOnce(format.Name(), names);
  }
  for (const QuantisedMatrix& section : matrix.quantised()) {
    AddOnce(section.format().Name(), names);
  }
}

// The bytes of an expert's matrices.
size_t BytesOf(const GatedWeights& expert) { return expert.gate_up.bytes() + expert.down.bytes(); }

}  // namespace

std::vector<const WeightMatrix*> LayerWeights::Matrices() const {
  std::vector<const WeightMatrix*> matrices = {&qkv, &attention_output};
  if (latents.has_value()) {
    matrices.push_back(&latents->down);
    if (!latents->query_norm.empty()) matrices.push_back(&latents->query_down);
  }
  if (!experts.has_value()) {
    matrices.insert(matrices.end(), {&gate_up, &down});
    return matrices;
  }
  for (const GatedWeights& expert : experts->experts) {
    matrices.insert(matrices.end(), {&expert.gate_up, &expert.down});
  }
  if (experts->shared.has_value()) {
    matrices.insert(matrices.end(), {&experts->shared->gate_up, &experts->shared->down});
  }
  return matrices;
}

size_t LatentWeights::bytes() const {
  size_t bytes = 0;
  for (const PackedMatrix& matrix : queries) bytes += matrix.bytes();
  for (const PackedMatrix& matrix : values) bytes += matrix.bytes();
  return bytes;
}

size_t Weights::matrix_bytes() const {
  size_t bytes = lm_head.bytes() + (mtp.has_value() ? mtp->projection.bytes() : 0);
  for (const LayerWeights& layer : layers) {
    for (const WeightMatrix* matrix : layer.Matrices()) bytes += matrix->bytes();
    if (layer.latents.has_value()) bytes += layer.latents->bytes();
  }
  return bytes;
}

size_t Weights::step_bytes() const {
  size_t bytes = matrix_bytes();
  const auto unused = static_cast<size_t>(config.experts.count - config.experts.per_token);
  for (const LayerWeights& layer : layers) {
    if (layer.experts.has_value()) bytes -= unused * BytesOf(layer.experts->experts[0]);
  }
  return bytes;
}

const WeightMatrix* Weights::embedding_matrix() const {
  if (embedding_weight.has_value()) return &*embedding_weight;
  return embedding.bytes() == 0 ? &lm_head : nullptr;
}

size_t Weights::bytes() const {
  const size_t matrix = embedding_weight.has_value() ? embedding_weight->bytes() : 0;
  return matrix_bytes() + embedding.bytes() + positions.bytes() + matrix;
}

bool Weights::quantised() const { return FormName() != kBf16Name; }

std::string Weights::FormName() const {
  std::vector<std::string> names;
  for (const LayerWeights& layer : layers) {
    for (const WeightMatrix* matrix : layer.Matrices()) AddForms(*matrix, names);
    if (layer.latents.has_value()) AddOnce(kBf16Name, names);  // its heads' matrices
  }
  if (mtp.has_value()) AddForms(mtp->projection, names);
  std::vector<std::string> head, table;
  AddForms(lm_head, head);
  if (embedding_weight.has_value()) AddForms(*embedding_weight, table);
  std::erase(table, kBf16Name);
  std::string all = fmt::format("{}", fmt::join(names, " and "));
  if (all == kBf16Name && head[0] == kBf16Name && table.empty()) return all;
  const std::string name =
      fmt::format("{}, lm_head {}{}", all, head[0], table.empty() ? "" : ", embedding " + table[0]);
  names.insert(names.end(), {head[0], table.empty() ? kBf16Name : table[0]});
  return name + (std::ranges::any_of(names, MultipliesIntegers) ? ", activations int16" : "");
}

}  // namespace penstock
