#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

// A product with a quantised weight of two sections, whose second has half of the outputs.
struct QuantisedCase {
  CodeForm form;  // of both sections
  int32_t rows = 1;
  int32_t inputs = 256;
  int32_t outputs = 96;
  uint64_t seed = 1;
};

struct QuantisedResult {
  std::vector<Bf16> expanded;   // [outputs][inputs]
  std::vector<Bf16> reference;  // as the host computes it
  std::vector<float> product;   // [rows][outputs], slices added in order
  std::vector<float> of_bf16;   // the same with the expanded weight
  double relative = 0;          // root mean square deviation of `product` in double precision
};

// A product with a bf16 weight: Gemm, or another.
using Bf16Product =
    std::function<Product(const Weight& weight, const Bf16* input, int rows, float* output)>;
QuantisedResult RunQuantised(const QuantisedCase& c, const Bf16Product& multiply = nullptr);

// A random weight with the case's form, inputs and outputs.
struct RandomCodes {
  std::vector<std::byte> panels;
  std::vector<Bf16> weights;  // [outputs][inputs]
};
RandomCodes MakeRandomCodes(const QuantisedCase& c);

// Every expansion, with every type of scales, with zero points and offsets, and groups of all
// sizes.
std::vector<CodeForm> AllForms(InputOrder order);
std::string NameOf(const CodeForm& form);

}  // namespace penstock::cuda
