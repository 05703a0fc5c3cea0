#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/view.h"

namespace penstock {

struct AddRowsArgs {
  View<const float, 2> input;  // [tokens, width]
  float factor = 1;
  View<float, 2> output;  // [tokens, width]
};

// The same for some rows of the output, each with a factor of its own.
struct AddRowsToArgs {
  View<const float, 2> input;      // [tokens, width]
  std::span<const int32_t> rows;   // of the output, no two equal
  std::span<const float> factors;  // [tokens]
  View<float, 2> output;           // [rows, width]
};

struct GatherRowsArgs {
  View<const float, 2> input;     // [rows, width]
  std::span<const int32_t> rows;  // of the input
  View<float, 2> output;          // [tokens, width]
};

struct CapRowsArgs {
  View<float, 2> rows;  // [tokens, width]
  float factor = 1;
  float cap = 0;  // 0: no cap
};

namespace cpu {
void AddRows(const Exec& exec, const AddRowsArgs& args);
void AddRowsTo(const Exec& exec, const AddRowsToArgs& args);
void GatherRows(const Exec& exec, const GatherRowsArgs& args);
void CapRows(const Exec& exec, const CapRowsArgs& args);
}  // namespace cpu

// output += input * factor, one multiply-add for each element.
inline void AddRows(const Exec& exec, const AddRowsArgs& args) { cpu::AddRows(exec, args); }

// output[rows[i]] += input[i] * factors[i], one multiply-add for each element.
inline void AddRowsTo(const Exec& exec, const AddRowsToArgs& args) { cpu::AddRowsTo(exec, args); }

// output[i] = input[rows[i]].
inline void GatherRows(const Exec& exec, const GatherRowsArgs& args) {
  cpu::GatherRows(exec, args);
}

// rows = cap * tanh(rows * factor / cap), in place; without a cap rows * factor.
inline void CapRows(const Exec& exec, const CapRowsArgs& args) { cpu::CapRows(exec, args); }

}  // namespace penstock
