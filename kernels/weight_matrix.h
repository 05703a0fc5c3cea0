#pragma once

#include <span>
#include <utility>
#include <variant>

#include "kernels/packed_matrix.h"
#include "kernels/quantised_matrix.h"

namespace penstock {

// Owns a weight matrix [outputs][inputs] in bf16 or in quantised form. Any thread may read it.
class WeightMatrix {
 public:
  WeightMatrix() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightMatrix(PackedMatrix matrix) : matrix_(std::move(matrix)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  WeightMatrix(QuantisedMatrix matrix) : matrix_(std::move(matrix)) {}

  // The bf16 matrix, or null if this one is quantised; and the reverse.
  const PackedMatrix* packed() const { return std::get_if<PackedMatrix>(&matrix_); }
  const QuantisedMatrix* quantised() const { return std::get_if<QuantisedMatrix>(&matrix_); }

  int64_t outputs() const {
    return std::visit([](const auto& matrix) { return matrix.outputs(); }, matrix_);
  }
  int64_t inputs() const {
    return std::visit([](const auto& matrix) { return matrix.inputs(); }, matrix_);
  }
  int64_t panels() const {
    return std::visit([](const auto& matrix) { return matrix.panels(); }, matrix_);
  }
  size_t bytes() const {
    return std::visit([](const auto& matrix) { return matrix.bytes(); }, matrix_);
  }
  std::span<const std::byte> memory() const {  // of all panels
    return std::visit([](const auto& matrix) { return matrix.memory(); }, matrix_);
  }
  // The weights of an output as f32, [inputs].
  void GetRow(int64_t output, float* values) const {
    std::visit([&](const auto& matrix) { matrix.GetRow(output, values); }, matrix_);
  }

 private:
  std::variant<PackedMatrix, QuantisedMatrix> matrix_;
};

}  // namespace penstock
