#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/packed_matrix.h"
#include "kernels/quantised_matrix.h"
#include "kernels/stored_matrix.h"

namespace penstock {

// Owns a weight matrix [outputs][inputs]: one in bf16, or quantised ones of different formats that
// are stacked along the outputs. Or it refers to one that is not in memory. Any thread may read it.
class WeightMatrix {
 public:
  using Sections = std::vector<QuantisedMatrix>;

  WeightMatrix() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightMatrix(PackedMatrix matrix) : matrix_(std::move(matrix)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightMatrix(QuantisedMatrix matrix) : matrix_(Sections()) {
    std::get<Sections>(matrix_).push_back(std::move(matrix));
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightMatrix(StoredMatrix matrix) : matrix_(std::move(matrix)) {}
  // At least one; all have as many inputs, and all but the last have whole panels. CHECKs it.
  explicit WeightMatrix(Sections sections);

  // Which of the three it is. The bf16 matrix, or null; the quantised ones in the order of outputs,
  // or none; the matrix that is not in memory, or null.
  const PackedMatrix* packed() const { return std::get_if<PackedMatrix>(&matrix_); }
  std::span<const QuantisedMatrix> quantised() const;
  const StoredMatrix* stored() const { return std::get_if<StoredMatrix>(&matrix_); }

  int64_t outputs() const;
  int64_t inputs() const;
  // In memory: none of a matrix that is stored elsewhere.
  int64_t panels() const;
  size_t bytes() const;
  std::vector<std::span<const std::byte>> memory() const;  // of all panels
  size_t memory_bytes() const;                             // of them, wherever they are
  // The same matrix with its panels in `memory`, which outlives it, in the order of memory(). Null:
  // without panels, so that it is a description for products with other memory. CHECKs that it is
  // not a StoredMatrix.
  WeightMatrix Over(std::byte* memory) const;
  // The weights of an output as f32, [inputs].
  void GetRow(int64_t output, float* values) const;

 private:
  std::variant<PackedMatrix, Sections, StoredMatrix> matrix_;
};

}  // namespace penstock
