#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace penstock {

struct AddRowsArgs {
  View<const float, 2> input;  // [tokens, width]
  float factor = 1;
  View<float, 2> output;  // [tokens, width]
};

struct CapRowsArgs {
  View<float, 2> rows;  // [tokens, width]
  float factor = 1;
  float cap = 0;  // 0: no cap
};

namespace cpu {
void AddRows(const Exec& exec, const AddRowsArgs& args);
void CapRows(const Exec& exec, const CapRowsArgs& args);
}  // namespace cpu

// output += input * factor, one multiply-add for each element.
inline void AddRows(const Exec& exec, const AddRowsArgs& args) { cpu::AddRows(exec, args); }

// rows = cap * tanh(rows * factor / cap), in place; without a cap rows * factor.
inline void CapRows(const Exec& exec, const CapRowsArgs& args) { cpu::CapRows(exec, args); }

}  // namespace penstock
