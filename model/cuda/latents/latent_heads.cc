#include "model/cuda/latents/latent_heads.h"

#include <algorithm>
#include <vector>

namespace penstock {

void LatentHeads::Read(Kind kind, int64_t index, Bf16* to) const {
  const int64_t head = first_ + index;
  const bool queries = kind == Kind::kQueries;
  if (weights_.queries.empty()) {
    return queries ? ReadQueriesOfUp(head, to) : ReadValuesOfUp(head, to);
  }
  const PackedMatrix& matrix =
      (queries ? weights_.queries : weights_.values)[static_cast<size_t>(head)];
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  for (int64_t row = 0; row < matrix.outputs(); ++row, to += matrix.inputs()) {
    matrix.GetRow(row, values.data());
    std::ranges::transform(values, to, ToBf16);
  }
}

// A matrix of queries is transposed in kv_b_proj.
void LatentHeads::ReadQueriesOfUp(int64_t head, Bf16* to) const {
  const int64_t plain = config_.plain_dims, rank = config_.rank;
  const int64_t first = head * (plain + config_.value_dims);
  std::vector<Bf16> values(static_cast<size_t>(rank));
  for (int64_t dim = 0; dim < plain; ++dim) {
    weights_.up.stored()->ReadRow(first + dim, 0, rank, values.data());
    for (int64_t i = 0; i < rank; ++i) to[i * plain + dim] = values[static_cast<size_t>(i)];
  }
}

void LatentHeads::ReadValuesOfUp(int64_t head, Bf16* to) const {
  const int64_t rank = config_.rank;
  const int64_t first = head * (config_.plain_dims + config_.value_dims) + config_.plain_dims;
  for (int64_t row = 0; row < config_.value_dims; ++row, to += rank) {
    weights_.up.stored()->ReadRow(first + row, 0, rank, to);
  }
}

}  // namespace penstock
