#include "kernels/weight_matrix.h"

#include "base/check.h"

namespace penstock {
namespace {

// The sum over sections of what a member function gives.
template <class T>
T SumOf(const auto& sections, T (QuantisedMatrix::*of)() const) {
  T sum = 0;
  for (const QuantisedMatrix& section : sections) sum += (section.*of)();
  return sum;
}

// The part of `memory` for the panels of a matrix; moves it behind them.
Buffer Take(size_t bytes, std::byte*& memory) {
  if (memory == nullptr) return {};
  const std::span<std::byte> part(memory, bytes);
  memory += bytes;
  return Buffer::Over(part);
}

}  // namespace

WeightMatrix::WeightMatrix(Sections sections) : matrix_(std::move(sections)) {
  const auto all = quantised();
  PENSTOCK_CHECK(!all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    PENSTOCK_CHECK_EQ(all[i].inputs(), all[0].inputs());
    PENSTOCK_CHECK(i + 1 == all.size() || all[i].outputs() % QuantisedMatrix::kPanel == 0);
  }
}

std::span<const QuantisedMatrix> WeightMatrix::quantised() const {
  const auto* sections = std::get_if<Sections>(&matrix_);
  return sections == nullptr ? std::span<const QuantisedMatrix>() : std::span(*sections);
}

int64_t WeightMatrix::outputs() const {
  if (packed() != nullptr) return packed()->outputs();
  if (stored() != nullptr) return stored()->outputs();
  return SumOf(quantised(), &QuantisedMatrix::outputs);
}

int64_t WeightMatrix::inputs() const {
  if (packed() != nullptr) return packed()->inputs();
  return stored() != nullptr ? stored()->inputs() : quantised()[0].inputs();
}

int64_t WeightMatrix::panels() const {
  if (packed() != nullptr) return packed()->panels();
  return SumOf(quantised(), &QuantisedMatrix::panels);
}

size_t WeightMatrix::bytes() const {
  if (packed() != nullptr) return packed()->bytes();
  return SumOf(quantised(), &QuantisedMatrix::bytes);
}

std::vector<std::span<const std::byte>> WeightMatrix::memory() const {
  if (packed() != nullptr) return {packed()->memory()};
  std::vector<std::span<const std::byte>> memory;
  for (const QuantisedMatrix& section : quantised()) memory.push_back(section.memory());
  return memory;
}

size_t WeightMatrix::memory_bytes() const {
  if (packed() != nullptr) return packed()->memory_bytes();
  return SumOf(quantised(), &QuantisedMatrix::memory_bytes);
}

WeightMatrix WeightMatrix::Over(std::byte* memory) const {
  PENSTOCK_CHECK(stored() == nullptr);
  if (packed() != nullptr) return packed()->Over(Take(packed()->memory_bytes(), memory));
  Sections sections;
  for (const QuantisedMatrix& section : quantised()) {
    sections.push_back(section.Over(Take(section.memory_bytes(), memory)));
  }
  return WeightMatrix(std::move(sections));
}

void WeightMatrix::GetRow(int64_t output, float* values) const {
  if (packed() != nullptr) return packed()->GetRow(output, values);
  if (stored() != nullptr) {
    std::vector<Bf16> row(static_cast<size_t>(inputs()));
    stored()->ReadRow(output, 0, inputs(), row.data());
    for (const Bf16 weight : row) *values++ = ToFloat(weight);
    return;
  }
  for (const QuantisedMatrix& section : quantised()) {
    if (output < section.outputs()) return section.GetRow(output, values);
    output -= section.outputs();
  }
  PENSTOCK_CHECK(false, "(the matrix has fewer outputs)");
}

}  // namespace penstock
