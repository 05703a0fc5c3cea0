#include "tests/cuda/cases/gemm_case.h"

#include <cmath>
#include <random>

#include "kernels/cuda/gemm.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {
namespace {

std::vector<Bf16> RandomRows(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(size);
  for (Bf16& value : values) value = ToBf16(normal(random));
  return values;
}

Product Multiply(const GemmCase& c, const Weight& weight, const Bf16* input, float* output) {
  switch (c.kernel) {
    case GemmKernel::kSkinny:
      return SkinnyGemm(weight, input, c.rows, output, nullptr);
    case GemmKernel::kWide:
      return WideGemm(weight, input, c.rows, output, Slices::kApart, nullptr);
    case GemmKernel::kWideAddedUp:
      return WideGemm(weight, input, c.rows, output, Slices::kAddedUp, nullptr);
    case GemmKernel::kChosen:
      break;
  }
  return Gemm(weight, input, c.rows, output, nullptr);
}

}  // namespace

GemmResult RunGemm(const GemmCase& c) {
  const auto x = RandomRows(int64_t{c.rows} * c.inputs, c.seed);
  const auto w = RandomRows(int64_t{c.outputs} * c.inputs, c.seed + 1);
  const DeviceArray<Bf16> input(x), matrix(w);
  const Weight weight{.data = matrix.data(), .outputs = c.outputs, .inputs = c.inputs};
  const size_t size = size_t{1} * c.rows * c.outputs;
  const DeviceArray<float> output(size * SkinnySlices(weight));
  const Product product = Multiply(c, weight, input.data(), output.data());
  ExpectNoDeviceError("a product");
  const std::vector<float> slices = output.Read();
  GemmResult result{.values = std::vector<float>(size)};
  double error = 0, reference = 0;
  for (size_t i = 0; i < size; ++i) {
    for (int s = 0; s < product.slices; ++s)
      result.values[i] += slices[s * product.slice_stride + i];
    const Bf16* row = x.data() + i / c.outputs * c.inputs;
    const Bf16* column = w.data() + i % c.outputs * c.inputs;
    double want = 0;
    for (int k = 0; k < c.inputs; ++k) want += double{ToFloat(row[k])} * ToFloat(column[k]);
    error += (result.values[i] - want) * (result.values[i] - want);
    reference += want * want;
  }
  result.relative = std::sqrt(error / reference);
  return result;
}

}  // namespace penstock::cuda
