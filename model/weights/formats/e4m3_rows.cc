// Weights of FP8 numbers (E4M3): the method fp8 of DeepSeek and Qwen, whose scales are
// weight_scale_inv, and float-quantized of compressed-tensors, whose scales are weight_scale.
// Despite the first name, both are factors of the numbers.

#include "kernels/e4m3.h"
#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

// Scales of blocks of outputs and inputs, of which a row is one with all inputs, or one of all.
struct BlockScales {
  TensorView view;
  std::string name;
  GroupShape groups;
  int64_t rows = 1;  // outputs of a block

  int64_t At(int64_t row, int64_t g) const { return row / rows * groups.stored_count + g; }
};

absl::StatusOr<BlockScales> ReadBlockScales(const QuantisationConfig& config,
                                            const TensorSource& source, const std::string& module,
                                            int64_t rows, int64_t inputs) {
  using Shape = std::vector<int64_t>;
  BlockScales scales{.name = module + ".weight_scale_inv"};
  if (!source.Has(scales.name)) scales.name = module + ".weight_scale";
  ASSIGN_OR_RETURN(const TensorView found, source.Get(scales.name));
  const Shape& shape = found.shape;
  const std::string field = "tensor " + scales.name;
  const bool single = shape.empty() || shape == Shape{1} || shape == Shape{1, 1};
  Shape expected = {rows, 1};
  if (single || shape == Shape{rows}) expected = shape;
  ASSIGN_OR_RETURN(scales.groups, GroupShapeOf(0, inputs, field));
  if (single) scales.rows = rows;
  if (config.group_size != 0 && !single && shape != expected) {
    ASSIGN_OR_RETURN(scales.groups, GroupShapeOf(config.group_size, inputs, field));
    scales.rows = config.block_rows;
    expected = {(rows + scales.rows - 1) / scales.rows, scales.groups.stored_count};
  }
  ASSIGN_OR_RETURN(scales.view, GetFloats(source, scales.name, expected));
  return scales;
}

}  // namespace

absl::StatusOr<QuantisedTensor> ReadE4m3Rows(const QuantisationConfig& config,
                                             const TensorSource& source, const std::string& module,
                                             int64_t rows, int64_t inputs) {
  const std::string name = module + ".weight";
  ASSIGN_OR_RETURN(const BlockScales scales, ReadBlockScales(config, source, module, rows, inputs));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = {.code = CodeType::kE4m3, .group = scales.groups.group, .scale = ScaleType::kF32};
  RETURN_IF_ERROR(FillScales(
      scales.view, scales.name, scales.groups,
      [&](int64_t row, int64_t g) { return scales.At(row, g); }, tensor));
  ASSIGN_OR_RETURN(const TensorView bytes,
                   GetIntegers(source, name, TensorDtype::kE4m3, {rows, inputs}));
  tensor.codes.resize(static_cast<size_t>(rows * inputs));
  for (int64_t i = 0; i < rows * inputs; ++i) {
    const auto code = static_cast<uint8_t>(ByteAt(bytes, i));
    if (IsE4m3Nan(code)) {
      return InvalidArgument("tensor {}: input {} of output {} is NaN, it must be a number", name,
                             i % inputs, i / inputs);
    }
    tensor.codes[static_cast<size_t>(i)] = code;
  }
  return tensor;
}

}  // namespace penstock
