#include "model/weights/weights.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
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
  if (matrix.packed() != nullptr || matrix.stored() != nullptr) AddOnce(kBf16Name, names);
  for (const QuantisedMatrix& section : matrix.quantised()) {
    AddOnce(section.format().Name(), names);
  }
}

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
  const auto used = static_cast<size_t>(config.experts.per_token);
  for (const LayerWeights& layer : layers) {
    if (!layer.experts.has_value()) continue;
    for (const GatedWeights& expert : layer.experts->experts) {
      bytes -= expert.gate_up.bytes() + expert.down.bytes();
    }
    bytes += used * layer.experts->experts[0].memory_bytes();
  }
  return bytes;
}

void Weights::SetKeyMeans(KeyMeans means) {
  PENSTOCK_CHECK_LE(means.layers.size(), layers.size());
  for (size_t i = 0; i < means.layers.size(); ++i) {
    layers[i].key_means = std::move(means.layers[i]);
  }
}

const WeightMatrix* Weights::embedding_matrix() const {
  if (embedding_weight.has_value()) return &*embedding_weight;
  return embedding.bytes() == 0 ? &lm_head : nullptr;
}

size_t Weights::bytes() const {
  const size_t matrix = embedding_weight.has_value() ? embedding_weight->bytes() : 0;
  const size_t experts = expert_cache == nullptr ? 0 : expert_cache->bytes();
  return matrix_bytes() + embedding.bytes() + positions.bytes() + matrix + experts;
}

bool Weights::quantised() const { return MatricesName() != kBf16Name; }

Weights::Forms Weights::FormsInUse() const {
  Forms forms;
  for (const LayerWeights& layer : layers) {
    for (const WeightMatrix* matrix : layer.Matrices()) AddForms(*matrix, forms.layers);
    if (layer.latents.has_value()) AddOnce(kBf16Name, forms.layers);  // its heads' matrices
  }
  if (mtp.has_value()) AddForms(mtp->projection, forms.layers);
  AddForms(lm_head, forms.lm_head);
  if (embedding_weight.has_value()) AddForms(*embedding_weight, forms.embedding);
  std::erase(forms.embedding, kBf16Name);
  return forms;
}

std::string Weights::MatricesName() const {
  const auto [names, head, table] = FormsInUse();
  std::string all = fmt::format("{}", fmt::join(names, " and "));
  if (all == kBf16Name && head[0] == kBf16Name && table.empty()) return all;
  return fmt::format("{}, lm_head {}{}", all, head[0],
                     table.empty() ? "" : ", embedding " + table[0]);
}

std::string Weights::FormName() const {
  const auto [names, head, table] = FormsInUse();
  const bool integers = std::ranges::any_of(names, MultipliesIntegers) ||
                        MultipliesIntegers(head[0]) ||
                        (!table.empty() && MultipliesIntegers(table[0]));
  return MatricesName() + (integers ? ", activations int16" : "");
}

}  // namespace penstock
