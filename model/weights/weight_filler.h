#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/weights/weights.h"

namespace penstock {

// The rows of a matrix that one tensor of a checkpoint holds. Row r of the tensor is row at(r) of
// the matrix.
struct MatrixPart {
  std::string module;  // the tensor's name without ".weight"
  int64_t rows = 0;
  std::function<int64_t(int64_t row)> at;
};

// A matrix of the model. Rows that no part sets, and inputs from stored_inputs on, are zeros.
struct MatrixPlan {
  int64_t outputs = 0;
  int64_t inputs = 0;
  int64_t stored_inputs = 0;  // of the tensors
  bool lm_head = false;
  std::span<const MatrixPart> parts;
  // Tensors are [inputs][rows of the part].
  bool transposed = false;
  // The rows of each part follow those of the part before it, so that parts may have formats of
  // their own.
  bool stacked = false;
  bool never_rounded = false;  // to MatrixForms
};

// Interface: fills weights in the order of BuildWeights, from any source.
class Filler {
 public:
  virtual ~Filler() = default;
  virtual absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) = 0;
  // Whether the embeddings of this name are a Matrix, not a Table.
  virtual bool IsMatrix(const std::string& module) const = 0;
  virtual absl::Status Table(const std::string& name, int64_t rows, int64_t columns,
                             Bf16* target) = 0;
  virtual absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape,
                              float* target) = 0;
};

// Fills a layer's projections to queries and latents, whose tensors' names begin with `prefix`.
absl::Status FillLatents(const ModelConfig& config, const std::string& prefix, Filler& filler,
                         LayerWeights& layer);

// Builds the weights of a model of `config`, whose experts go to the cache, unless it is null.
absl::StatusOr<Weights> BuildWeights(const ModelConfig& config, Filler& filler,
                                     std::unique_ptr<ExpertCache> experts = nullptr);

// The filler of LoadWeights, from `source`, which outlives it, as does `config`. It packs a matrix
// on `threads` threads; others than the caller's do not use the source.
std::unique_ptr<Filler> MakeCheckpointFiller(const ModelConfig& config, const TensorSource& source,
                                             const MatrixForms& forms, int threads);

// Reads inputs [first, first + count) of row `row` of a part's tensor.
using ReadRow = std::function<void(int64_t row, int64_t first, int64_t count, Bf16* target)>;
using OpenPart = std::function<absl::StatusOr<ReadRow>(const MatrixPart&)>;

// Makes a bf16 matrix, or one rounded to plan.lm_head ? forms.lm_head : forms.layers. Opens part
// after part, and reads all of its rows whole, on `threads` threads, before it opens the next.
// INVALID_ARGUMENT names the tensor of a row that cannot be rounded.
absl::StatusOr<WeightMatrix> FillMatrix(const MatrixPlan& plan, const MatrixForms& forms,
                                        const OpenPart& open, int threads = 1);

// Makes a bf16 matrix that is not in memory. It reads rows of all parts in any order, on any
// thread.
absl::StatusOr<WeightMatrix> StoreMatrix(const MatrixPlan& plan, const OpenPart& open);

}  // namespace penstock
