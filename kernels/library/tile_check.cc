#include "kernels/library/tile_check.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_device.h"

namespace penstock::cuda::library {
namespace {

// Not multiples of a tile, in any direction; more rows than the largest tile has.
constexpr int32_t kOutputs = 260, kInputs = 264, kRows = 257;
constexpr double kDeviationMax = 1e-4;  // f32 sums reach 1e-6

std::vector<Bf16> Values(int64_t count, uint32_t seed) {
  std::vector<Bf16> values(count);
  for (Bf16& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = ToBf16(static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f);
  }
  return values;
}

std::vector<double> Reference(const std::vector<Bf16>& weight, const std::vector<Bf16>& input) {
  std::vector<double> product(int64_t{kRows} * kOutputs);
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t output = 0; output < kOutputs; ++output) {
      double sum = 0;
      for (int32_t i = 0; i < kInputs; ++i) {
        sum += double{ToFloat(input[int64_t{row} * kInputs + i])} *
               ToFloat(weight[int64_t{output} * kInputs + i]);
      }
      product[int64_t{row} * kOutputs + output] = sum;
    }
  }
  return product;
}

double Deviation(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, reference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    reference += want[i] * want[i];
  }
  return std::sqrt(error / reference);
}

// The arrays of the product on the GPU.
struct DeviceArrays {
  static absl::StatusOr<DeviceArrays> Create(const std::vector<Bf16>& weight,
                                             const std::vector<Bf16>& input, void* stream) {
    DeviceArrays arrays;
    ASSIGN_OR_RETURN(arrays.weight, DeviceBuffer::Create(weight.size() * 2, "a check's weight"));
    ASSIGN_OR_RETURN(arrays.input, DeviceBuffer::Create(input.size() * 2, "a check's input"));
    ASSIGN_OR_RETURN(arrays.output,
                     DeviceBuffer::Create(sizeof(float) * kRows * kOutputs, "a check's output"));
    CopyToDevice(arrays.weight.as<void>(), weight.data(), weight.size() * 2, stream);
    CopyToDevice(arrays.input.as<void>(), input.data(), input.size() * 2, stream);
    return arrays;
  }

  DeviceBuffer weight, input, output;
};

absl::Status Wrong(GemmTile tile, std::string_view what) {
  return FailedPrecondition("the library's product by tiles of {} {}", ShapeOf(tile).name, what);
}

}  // namespace

absl::Status CheckTiles(const TileRun& run, int32_t processors, void* stream) {
  const std::vector<Bf16> weight = Values(int64_t{kOutputs} * kInputs, 1);
  const std::vector<Bf16> input = Values(int64_t{kRows} * kInputs, 2);
  const std::vector<double> want = Reference(weight, input);
  ASSIGN_OR_RETURN(const DeviceArrays arrays, DeviceArrays::Create(weight, input, stream));
  std::vector<float> first;
  for (size_t i = 0; i < kGemmTiles.size(); ++i) {
    const auto tile = static_cast<GemmTile>(i);
    std::vector<float> got(want.size());
    FillDevice(arrays.output.as<void>(), 0xff, arrays.output.bytes(), stream);  // NaN
    run(tile, {.weight = {.data = arrays.weight.as<Bf16>(), .outputs = kOutputs, .inputs = kInputs},
               .input = arrays.input.as<Bf16>(),
               .rows = kRows,
               .output = arrays.output.as<float>(),
               .processors = processors});
    CopyToHost(got.data(), arrays.output.as<void>(), arrays.output.bytes(), stream);
    Synchronize(stream);
    RETURN_IF_ERROR(TakeStatus("a check of the library's products"));
    if (!(Deviation(got, want) < kDeviationMax)) return Wrong(tile, "is wrong");
    if (first.empty()) first = got;
    // Bits, so that 0 and -0 differ.
    if (std::memcmp(first.data(), got.data(), got.size() * sizeof(float)) != 0) {
      return Wrong(tile, "has other bits than that by tiles of 64x16");
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::cuda::library
