// MXFP4 as gpt-oss's checkpoints store it: blocks [rows][inputs / 32][16] of bytes, whose low half
// is an even input and whose high half the odd one after it, and scales [rows][inputs / 32].

#include "model/weights/formats/block_types.h"
#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

constexpr int64_t kBlock = 32;
constexpr int kNanExponent = 255;

}  // namespace

absl::StatusOr<QuantisedTensor> ReadMxfp4Rows(const TensorSource& source, const std::string& module,
                                              int64_t rows, int64_t inputs) {
  if (inputs % kBlock != 0) {
    return InvalidArgument(
        "tensor {}.blocks: config.json implies rows of {} inputs, allowed are "
        "multiples of {}",
        module, inputs, kBlock);
  }
  const int64_t groups = inputs / kBlock;
  ASSIGN_OR_RETURN(const TensorView scales,
                   GetIntegers(source, module + ".scales", TensorDtype::kU8, {rows, groups}));
  QuantisedTensor tensor{.rows = rows, .inputs = inputs};
  tensor.format = kMxfp4Format;
  for (int64_t i = 0; i < rows * groups; ++i) {
    const int exponent = static_cast<uint8_t>(ByteAt(scales, i));
    if (exponent == kNanExponent) {
      return InvalidArgument("tensor {}.scales: a scale of output {} is NaN, it must be a number",
                             module, i / groups);
    }
    tensor.scales.push_back(Mxfp4Scale(exponent));
  }
  ASSIGN_OR_RETURN(
      const TensorView blocks,
      GetIntegers(source, module + ".blocks", TensorDtype::kU8, {rows, groups, kBlock / 2}));
  tensor.codes.reserve(static_cast<size_t>(rows * inputs));
  for (int64_t i = 0; i < rows * inputs / 2; ++i) {
    const int pair = static_cast<uint8_t>(ByteAt(blocks, i));
    tensor.codes.push_back(static_cast<uint8_t>(pair & 15));
    tensor.codes.push_back(static_cast<uint8_t>(pair >> 4));
  }
  return tensor;
}

}  // namespace penstock
