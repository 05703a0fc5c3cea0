#pragma once

// From the form of a weight to the template arguments of its kernels.

#include "kernels/cuda/device/weights/expansion.cuh"
#include "kernels/cuda/weight_codes.h"

namespace penstock::cuda {

template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

// Calls `run` with the constant of the form's expansion.
template <class Run>
void ForExpansion(const CodeForm& form, const Run& run) {
  if (form.code == WeightCode::kInt8) return run(Constant<Expansion::kInt8>());
  if (form.code == WeightCode::kE4m3) return run(Constant<Expansion::kE4m3>());
  if (form.code == WeightCode::kE2m1) return run(Constant<Expansion::kE2m1>());
  if (form.pairs) return run(Constant<Expansion::kInt4Pairs>());
  run(Constant<Expansion::kInt4>());
}

// Calls `run` with the constants of the form's expansion and order.
template <class Run>
void ForForm(const CodeForm& form, const Run& run) {
  ForExpansion(form, [&](auto expansion) {
    if (form.order == InputOrder::kNatural) return run(expansion, Constant<InputOrder::kNatural>());
    run(expansion, Constant<InputOrder::kOwn>());
  });
}

}  // namespace penstock::cuda
