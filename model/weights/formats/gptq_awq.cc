// Weights as GPTQ's tools (AutoGPTQ, GPTQModel) and AutoAWQ store them: [inputs][outputs], outputs
// innermost.

#include <algorithm>

#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

// AutoAWQ stores the eight outputs of a word in this order of halves.
constexpr int kAwqNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};

// Scales are [groups][outputs].
absl::Status FillColumnScales(const TensorSource& source, const std::string& module,
                              const GroupShape& shape, QuantisedTensor& tensor) {
  const std::string name = module + ".scales";
  const int64_t rows = tensor.rows;
  ASSIGN_OR_RETURN(const TensorView scales, GetFloats(source, name, {shape.stored_count, rows}));
  return FillScales(
      scales, name, shape, [rows](int64_t row, int64_t g) { return g * rows + row; }, tensor);
}

absl::Status CheckWords(const std::string& module, int64_t rows, int per_word) {
  if (rows % per_word == 0) return absl::OkStatus();
  return InvalidArgument("tensor {}.qzeros: {} outputs do not fill words of {} codes", module, rows,
                         per_word);
}

// GPTQModel and AutoGPTQ before it wrote zero points less by one ("gptq"); "gptq_v2" does not. If
// the configuration does not say which, the usual zero point 2^(bits - 1) tells: v1 has its
// predecessor in every place.
bool IsLessByOne(const QuantisationConfig& config, const TensorView& zeros, int bits) {
  if (config.zero_form != QuantisationConfig::ZeroForm::kUnknown) {
    return config.zero_form == QuantisationConfig::ZeroForm::kLessByOne;
  }
  return WordAt(zeros, 0) != (bits == 4 ? 0x88888888u : 0x80808080u);
}

absl::Status FillGptqZeros(const QuantisationConfig& config, const TensorSource& source,
                           const std::string& module, const GroupShape& shape,
                           QuantisedTensor& tensor) {
  const int bits = tensor.format.bits, per_word = 32 / bits;
  const int64_t words = tensor.rows / per_word;
  ASSIGN_OR_RETURN(
      const TensorView zeros,
      GetIntegers(source, module + ".qzeros", TensorDtype::kI32, {shape.stored_count, words}));
  const uint32_t mask = (1u << bits) - 1, more = IsLessByOne(config, zeros, bits) ? 1 : 0;
  FillZeros(
      shape,
      [&](int64_t row, int64_t g) {
        const uint32_t word = WordAt(zeros, g * words + row / per_word);
        // Masked: a zero point of 0 is stored as -1.
        return static_cast<int>(((word >> (row % per_word * bits) & mask) + more) & mask);
      },
      tensor);
  return absl::OkStatus();
}

// Stores the codes of `word` to every position of an output that it holds.
void UnpackGptqCodes(const TensorView& words, const std::vector<int64_t>& position_of,
                     QuantisedTensor& tensor) {
  const int bits = tensor.format.bits, per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  constexpr int64_t kRowsAtOnce = 64;  // whose codes stay in a cache
  for (int64_t first = 0; first < tensor.rows; first += kRowsAtOnce) {
    const int64_t last = std::min(tensor.rows, first + kRowsAtOnce);
    for (int64_t w = 0; w < tensor.inputs / per_word; ++w) {
      for (int64_t row = first; row < last; ++row) {
        const uint32_t word = WordAt(words, w * tensor.rows + row);
        uint8_t* codes = tensor.codes.data() + row * tensor.inputs;
        for (int i = 0; i < per_word; ++i) {
          const int64_t input = w * per_word + i;
          const int64_t at = position_of.empty() ? input : position_of[static_cast<size_t>(input)];
          codes[at] = static_cast<uint8_t>(word >> (i * bits) & mask);
        }
      }
    }
  }
}

std::vector<int64_t> Inverse(const std::vector<int32_t>& order) {
  std::vector<int64_t> position(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] >= 0) position[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return position;
}

}  // namespace

absl::StatusOr<QuantisedTensor> ReadGptq(const QuantisationConfig& config,
                                         const TensorSource& source, const std::string& module,
                                         int64_t rows, int64_t inputs) {
  const std::string name = module + ".qweight";
  ASSIGN_OR_RETURN(const TensorView found, source.Get(name));
  const int64_t words = found.shape.empty() ? 0 : found.shape.front();
  ASSIGN_OR_RETURN(const int bits, BitsOfWords(words, inputs, name));
  if (inputs % (32 / bits) != 0) {
    return InvalidArgument("tensor {}: {} inputs do not fill words of {} codes", name, inputs,
                           32 / bits);
  }
  RETURN_IF_ERROR(CheckWords(module, rows, 32 / bits));
  ASSIGN_OR_RETURN(const GroupShape shape,
                   GroupShapeOf(config.group_size, inputs, "quantization_config.group_size"));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = {.bits = bits, .group = shape.group};
  RETURN_IF_ERROR(FillColumnScales(source, module, shape, tensor));
  RETURN_IF_ERROR(FillGptqZeros(config, source, module, shape, tensor));
  const std::string groups = module + ".g_idx";
  if (source.Has(groups)) {
    ASSIGN_OR_RETURN(const TensorView order,
                     GetIntegers(source, groups, TensorDtype::kI32, {inputs}));
    RETURN_IF_ERROR(FillOrder(order, groups, shape, tensor));
  }
  ASSIGN_OR_RETURN(const TensorView codes,
                   GetIntegers(source, name, TensorDtype::kI32, {words, rows}));
  tensor.codes.resize(static_cast<size_t>(rows * inputs));
  UnpackGptqCodes(codes, Inverse(tensor.order), tensor);
  return tensor;
}

absl::StatusOr<QuantisedTensor> ReadAwq(const QuantisationConfig& config,
                                        const TensorSource& source, const std::string& module,
                                        int64_t rows, int64_t inputs) {
  constexpr int kPerWord = 8;
  RETURN_IF_ERROR(CheckWords(module, rows, kPerWord));
  ASSIGN_OR_RETURN(const GroupShape shape,
                   GroupShapeOf(config.group_size, inputs, "quantization_config.group_size"));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = {.bits = 4, .group = shape.group};
  const int64_t words = rows / kPerWord;
  RETURN_IF_ERROR(FillColumnScales(source, module, shape, tensor));
  const auto code = [](uint32_t word, int64_t row) {
    return static_cast<int>(word >> (4 * kAwqNibble[row % kPerWord]) & 15u);
  };
  ASSIGN_OR_RETURN(
      const TensorView zeros,
      GetIntegers(source, module + ".qzeros", TensorDtype::kI32, {shape.stored_count, words}));
  FillZeros(
      shape,
      [&](int64_t row, int64_t g) { return code(WordAt(zeros, g * words + row / kPerWord), row); },
      tensor);
  ASSIGN_OR_RETURN(const TensorView codes,
                   GetIntegers(source, module + ".qweight", TensorDtype::kI32, {inputs, words}));
  tensor.codes.resize(static_cast<size_t>(rows * inputs));
  for (int64_t w = 0; w < words; ++w) {
    for (int64_t input = 0; input < inputs; ++input) {
      const uint32_t word = WordAt(codes, input * words + w);
      for (int64_t row = w * kPerWord; row < (w + 1) * kPerWord; ++row) {
        tensor.codes[static_cast<size_t>(row * inputs + input)] =
            static_cast<uint8_t>(code(word, row));
      }
    }
  }
  return tensor;
}

}  // namespace penstock
