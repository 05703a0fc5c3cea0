#include <cstdint>
#include <string>
#include <vector>

#include "model/weights/weight_filler.h"

namespace penstock {
namespace {

// Rows of `size`, of which the last `rotated` are the rotated dimensions. Of interleaved pairs, the
// first dimensions go to the first half of them and the second dimensions to the second half.
std::function<int64_t(int64_t)> RotatedRows(const ModelConfig& config, int64_t size) {
  const int64_t rotated = config.latent.rope_dims, plain = size - rotated;
  return [=, interleaved = config.rope.interleaved](int64_t row) {
    const int64_t at = row % size - plain;
    if (at < 0 || !interleaved) return row;
    return row - at + at % 2 * (rotated / 2) + at / 2;
  };
}

absl::StatusOr<WeightMatrix> FillRotated(const ModelConfig& config, const std::string& module,
                                         int64_t outputs, int64_t inputs, int64_t size,
                                         Filler& filler) {
  const MatrixPart part{module, outputs, RotatedRows(config, size)};
  return filler.Matrix(
      {.outputs = outputs, .inputs = inputs, .stored_inputs = inputs, .parts = {&part, 1}});
}

absl::StatusOr<WeightMatrix> FillPlain(const std::string& module, int64_t outputs, int64_t inputs,
                                       Filler& filler) {
  const MatrixPart part{module, outputs, [](int64_t row) { return row; }};
  return filler.Matrix(
      {.outputs = outputs, .inputs = inputs, .stored_inputs = inputs, .parts = {&part, 1}});
}

absl::Status FillNormOf(const std::string& module, int64_t size, Filler& filler,
                        std::vector<float>& target) {
  target.resize(static_cast<size_t>(size));
  return filler.Floats(module + ".weight", {size}, target.data());
}

void SetBf16Row(const std::vector<float>& values, int64_t row, PackedMatrix& matrix) {
  std::vector<Bf16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) rounded.push_back(ToBf16(value));
  matrix.SetRow(row, rounded.data());
}

// Rows [first, first + plain_dims) of `up`, transposed.
PackedMatrix QueryMatrix(const LatentConfig& latent, const WeightMatrix& up, int64_t first) {
  std::vector<std::vector<float>> rows(static_cast<size_t>(latent.rank));
  for (std::vector<float>& row : rows) row.resize(static_cast<size_t>(latent.plain_dims));
  std::vector<float> values(rows.size());
  for (int64_t dim = 0; dim < latent.plain_dims; ++dim) {
    up.GetRow(first + dim, values.data());
    for (size_t i = 0; i < rows.size(); ++i) rows[i][static_cast<size_t>(dim)] = values[i];
  }
  PackedMatrix matrix(latent.rank, latent.plain_dims);
  for (size_t i = 0; i < rows.size(); ++i) SetBf16Row(rows[i], static_cast<int64_t>(i), matrix);
  return matrix;
}

// Rows [first, first + count) of `stored`.
PackedMatrix RowsOf(const WeightMatrix& stored, int64_t first, int64_t count) {
  PackedMatrix matrix(count, stored.inputs());
  std::vector<float> values(static_cast<size_t>(stored.inputs()));
  for (int64_t row = 0; row < count; ++row) {
    stored.GetRow(first + row, values.data());
    SetBf16Row(values, row, matrix);
  }
  return matrix;
}

// A part of kv_b_proj, never rounded to integers as the whole.
absl::StatusOr<WeightMatrix> FillUpPart(const std::string& module, int64_t outputs, int64_t inputs,
                                        Filler& filler) {
  const MatrixPart part{module, outputs, [](int64_t row) { return row; }};
  return filler.Matrix({.outputs = outputs,
                        .inputs = inputs,
                        .stored_inputs = inputs,
                        .parts = {&part, 1},
                        .never_rounded = true});
}

// k_b_proj and v_b_proj: the matrices of the heads as they are used.
absl::Status FillHalves(const ModelConfig& config, const std::string& prefix, Filler& filler,
                        LatentWeights& weights) {
  const LatentConfig& latent = config.latent;
  ASSIGN_OR_RETURN(const WeightMatrix queries,
                   FillUpPart(prefix + "k_b_proj", int64_t{config.heads} * latent.rank,
                              latent.plain_dims, filler));
  ASSIGN_OR_RETURN(const WeightMatrix values,
                   FillUpPart(prefix + "v_b_proj", int64_t{config.heads} * latent.value_dims,
                              latent.rank, filler));
  if (queries.outputs() == 0) return absl::OkStatus();  // a filler may count weights without any
  for (int64_t head = 0; head < config.heads; ++head) {
    weights.queries.push_back(RowsOf(queries, head * latent.rank, latent.rank));
    weights.values.push_back(RowsOf(values, head * latent.value_dims, latent.value_dims));
  }
  return absl::OkStatus();
}

// kv_b_proj: for each head, the rows from latents to its plain keys, then those to its values. It
// is never rounded to integers, because the transposed half would have other groups.
absl::Status FillUp(const ModelConfig& config, const std::string& module, Filler& filler,
                    LatentWeights& weights) {
  const LatentConfig& latent = config.latent;
  const int64_t each = latent.plain_dims + latent.value_dims;
  ASSIGN_OR_RETURN(WeightMatrix up, FillUpPart(module, config.heads * each, latent.rank, filler));
  if (up.stored() != nullptr || up.outputs() == 0) {  // A filler may count weights without any.
    weights.up = std::move(up);
    return absl::OkStatus();
  }
  for (int32_t head = 0; head < config.heads; ++head) {
    weights.queries.push_back(QueryMatrix(latent, up, head * each));
    weights.values.push_back(RowsOf(up, head * each + latent.plain_dims, latent.value_dims));
  }
  return absl::OkStatus();
}

absl::Status FillQueries(const ModelConfig& config, const std::string& prefix, Filler& filler,
                         LayerWeights& layer) {
  const LatentConfig& latent = config.latent;
  const int64_t size = latent.QueryDims(), outputs = config.heads * size;
  if (latent.query_rank == 0) {
    ASSIGN_OR_RETURN(layer.qkv,
                     FillRotated(config, prefix + "q_proj", outputs, config.hidden, size, filler));
    return absl::OkStatus();
  }
  LatentWeights& weights = *layer.latents;
  ASSIGN_OR_RETURN(weights.query_down,
                   FillPlain(prefix + "q_a_proj", latent.query_rank, config.hidden, filler));
  RETURN_IF_ERROR(
      FillNormOf(prefix + "q_a_layernorm", latent.query_rank, filler, weights.query_norm));
  ASSIGN_OR_RETURN(layer.qkv, FillRotated(config, prefix + "q_b_proj", outputs, latent.query_rank,
                                          size, filler));
  return absl::OkStatus();
}

}  // namespace

absl::Status FillLatents(const ModelConfig& config, const std::string& prefix, Filler& filler,
                         LayerWeights& layer) {
  const LatentConfig& latent = config.latent;
  LatentWeights& weights = layer.latents.emplace();
  RETURN_IF_ERROR(FillQueries(config, prefix, filler, layer));
  ASSIGN_OR_RETURN(weights.down, FillRotated(config, prefix + "kv_a_proj_with_mqa", config.head_dim,
                                             config.hidden, config.head_dim, filler));
  RETURN_IF_ERROR(FillNormOf(prefix + "kv_a_layernorm", latent.rank, filler, weights.norm));
  if (config.names.latent_halves) return FillHalves(config, prefix, filler, weights);
  return FillUp(config, prefix + "kv_b_proj", filler, weights);
}

}  // namespace penstock
