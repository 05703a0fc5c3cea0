// Weights as the library compressed-tensors stores them (vllm-project/compressed-tensors, 0.20):
// rows of outputs, codes of ascending inputs from the low bits of each word on.

#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

// The tensor of scales: [rows][groups], or one scale a row, or one scale of all.
struct StoredScales {
  TensorView view;
  std::string name;
  GroupShape groups;
  bool single = false;
};

absl::StatusOr<StoredScales> ReadScales(const QuantisationConfig& config,
                                        const TensorSource& source, const std::string& module,
                                        int64_t rows, int64_t inputs) {
  StoredScales scales{.name = module + ".weight_scale"};
  ASSIGN_OR_RETURN(const TensorView found, source.Get(scales.name));
  const auto& shape = found.shape;
  scales.single = shape == std::vector<int64_t>{1} || shape.empty();
  const bool whole_rows = scales.single || shape.size() == 1 || shape.back() == 1;
  const int64_t size = whole_rows ? 0 : config.group_size;
  if (!whole_rows && size == 0) {
    return InvalidArgument(
        "tensor {} has shape [{}], and quantization_config of config.json has no group_size for it",
        scales.name, fmt::join(shape, ", "));
  }
  ASSIGN_OR_RETURN(scales.groups, GroupShapeOf(size, inputs, "tensor " + scales.name));
  std::vector<int64_t> expected = {rows, scales.groups.stored_count};
  if (scales.single || shape == std::vector<int64_t>{rows}) expected = shape;
  ASSIGN_OR_RETURN(scales.view, GetFloats(source, scales.name, expected));
  return scales;
}

absl::Status FillScalesOf(const StoredScales& scales, QuantisedTensor& tensor) {
  return FillScales(
      scales.view, scales.name, scales.groups,
      [&](int64_t row, int64_t g) {
        return scales.single ? 0 : row * scales.groups.stored_count + g;
      },
      tensor);
}

// Zero points: 32-bit words packed along the outputs, or (older files, and whole bytes) signed
// bytes that are less by 2^(bits - 1).
absl::Status FillZerosOf(const TensorSource& source, const std::string& module,
                         const GroupShape& groups, QuantisedTensor& tensor) {
  const std::string name = module + ".weight_zero_point";
  if (!source.Has(name)) return absl::OkStatus();
  const int bits = tensor.format.bits, per_word = 32 / bits, base = tensor.format.zero();
  const int64_t count = groups.stored_count;
  ASSIGN_OR_RETURN(const TensorView found, source.Get(name));
  if (found.dtype == TensorDtype::kI8) {
    ASSIGN_OR_RETURN(const TensorView zeros,
                     GetIntegers(source, name, TensorDtype::kI8, {tensor.rows, count}));
    for (int64_t i = 0; i < tensor.rows * count; ++i) {
      const int zero = ByteAt(zeros, i) + base;
      if (zero < 0 || zero >= 2 * base) {
        return InvalidArgument("tensor {}: element {} is {}, allowed is {} to {}", name, i,
                               zero - base, -base, base - 1);
      }
    }
    FillZeros(
        groups, [&](int64_t row, int64_t g) { return ByteAt(zeros, row * count + g) + base; },
        tensor);
    return absl::OkStatus();
  }
  const int64_t words = (tensor.rows + per_word - 1) / per_word;
  ASSIGN_OR_RETURN(const TensorView zeros,
                   GetIntegers(source, name, TensorDtype::kI32, {words, count}));
  FillZeros(
      groups,
      [&](int64_t row, int64_t g) {
        const uint32_t word = WordAt(zeros, row / per_word * count + g);
        return static_cast<int>(word >> (row % per_word * bits) & ((1u << bits) - 1));
      },
      tensor);
  return absl::OkStatus();
}

absl::Status FillOrderOf(const TensorSource& source, const std::string& module,
                         const GroupShape& groups, QuantisedTensor& tensor) {
  const std::string name = module + ".weight_g_idx";
  if (!source.Has(name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView found,
                   GetIntegers(source, name, TensorDtype::kI32, {tensor.inputs}));
  return FillOrder(found, name, groups, tensor);
}

// weight_shape repeats the shape of the matrix.
absl::Status CheckStoredShape(const TensorSource& source, const std::string& module, int64_t rows,
                              int64_t inputs) {
  const std::string name = module + ".weight_shape";
  ASSIGN_OR_RETURN(const TensorView found, source.Get(name));
  const bool wide = found.dtype == TensorDtype::kI64;
  ASSIGN_OR_RETURN(const TensorView shape,
                   GetIntegers(source, name, wide ? TensorDtype::kI64 : TensorDtype::kI32, {2}));
  const int step = wide ? 2 : 1;  // words of a number; the high word of a small one is 0
  const bool fits = WordAt(shape, 0) == static_cast<uint64_t>(rows) &&
                    WordAt(shape, step) == static_cast<uint64_t>(inputs) &&
                    (!wide || (WordAt(shape, 1) == 0 && WordAt(shape, 3) == 0));
  if (fits) return absl::OkStatus();
  return InvalidArgument("tensor {} says [{}, {}], config.json implies [{}, {}]", name,
                         WordAt(shape, 0), WordAt(shape, step), rows, inputs);
}

}  // namespace

absl::StatusOr<QuantisedTensor> ReadPackedRows(const QuantisationConfig& config,
                                               const TensorSource& source,
                                               const std::string& module, int64_t rows,
                                               int64_t inputs) {
  const std::string name = module + ".weight_packed";
  ASSIGN_OR_RETURN(const TensorView found, source.Get(name));
  const int64_t words = found.shape.empty() ? 0 : found.shape.back();
  ASSIGN_OR_RETURN(const int bits, BitsOfWords(words, inputs, name));
  RETURN_IF_ERROR(CheckStoredShape(source, module, rows, inputs));
  ASSIGN_OR_RETURN(const StoredScales scales, ReadScales(config, source, module, rows, inputs));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = {.bits = bits, .group = scales.groups.group};
  RETURN_IF_ERROR(FillScalesOf(scales, tensor));
  RETURN_IF_ERROR(FillZerosOf(source, module, scales.groups, tensor));
  RETURN_IF_ERROR(FillOrderOf(source, module, scales.groups, tensor));
  ASSIGN_OR_RETURN(const TensorView packed,
                   GetIntegers(source, name, TensorDtype::kI32, {rows, words}));
  const int per_word = 32 / bits;
  tensor.codes.resize(static_cast<size_t>(rows * inputs));
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* codes = tensor.codes.data() + row * inputs;
    for (int64_t i = 0; i < inputs; ++i) {
      const int64_t input = tensor.order.empty() ? i : tensor.order[static_cast<size_t>(i)];
      const uint32_t word = WordAt(packed, row * words + input / per_word);
      codes[i] = static_cast<uint8_t>(word >> (input % per_word * bits) & ((1u << bits) - 1));
    }
  }
  return tensor;
}

absl::StatusOr<QuantisedTensor> ReadByteRows(const QuantisationConfig& config,
                                             const TensorSource& source, const std::string& module,
                                             int64_t rows, int64_t inputs) {
  const std::string name = module + ".weight";
  ASSIGN_OR_RETURN(const StoredScales scales, ReadScales(config, source, module, rows, inputs));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = {.bits = 8, .group = scales.groups.group};
  RETURN_IF_ERROR(FillScalesOf(scales, tensor));
  RETURN_IF_ERROR(FillZerosOf(source, module, scales.groups, tensor));
  ASSIGN_OR_RETURN(const TensorView bytes,
                   GetIntegers(source, name, TensorDtype::kI8, {rows, inputs}));
  tensor.codes.resize(static_cast<size_t>(rows * inputs));
  for (int64_t i = 0; i < rows * inputs; ++i) {
    tensor.codes[static_cast<size_t>(i)] = static_cast<uint8_t>(ByteAt(bytes, i) + 128);
  }
  return tensor;
}

}  // namespace penstock
