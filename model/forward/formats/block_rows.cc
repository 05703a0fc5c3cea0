// Weights as GGUF files store them: rows of blocks (block_types.h).

#include <algorithm>

#include "model/forward/formats/quantised_tensor.h"

namespace penstock {
namespace {

// Appends one block to the rows of a tensor.
absl::Status AppendBlock(const UnpackedBlock& block, const BlockType& type, const std::string& name,
                         QuantisedTensor& tensor) {
  const auto groups = static_cast<int>(type.elements / type.format.group);
  tensor.codes.insert(tensor.codes.end(), block.codes, block.codes + type.elements);
  tensor.scales.insert(tensor.scales.end(), block.scales, block.scales + groups);
  const auto is_finite = [](float value) { return value - value == 0; };
  bool finite = std::all_of(block.scales, block.scales + groups, is_finite);
  if (type.format.offsets) {
    tensor.offsets.insert(tensor.offsets.end(), block.offsets, block.offsets + groups);
    finite = finite && std::all_of(block.offsets, block.offsets + groups, is_finite);
  }
  if (finite) return absl::OkStatus();
  return InvalidArgument("tensor {}: a scale of output {} is not finite", name,
                         static_cast<int64_t>(tensor.codes.size() - 1) / tensor.inputs);
}

}  // namespace

absl::StatusOr<QuantisedTensor> ReadBlocks(const TensorSource& source, const std::string& module,
                                           int64_t rows, int64_t inputs) {
  const std::string name = module + ".weight";
  ASSIGN_OR_RETURN(const TensorView view, GetBlocks(source, name, {rows, inputs}));
  const BlockType& type = *view.blocks;
  QuantisedTensor tensor{.rows = rows, .inputs = inputs, .format = type.format};
  const auto groups = static_cast<size_t>(rows * tensor.groups());
  tensor.codes.reserve(static_cast<size_t>(rows * inputs));
  tensor.scales.reserve(groups);
  if (type.format.offsets) tensor.offsets.reserve(groups);
  UnpackedBlock block;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t blocks = inputs / type.elements;
    const std::byte* from = view.bytes.data() + view.StoredRow(row) * blocks * type.bytes;
    for (int64_t b = 0; b < blocks; ++b) {
      type.unpack(from + b * type.bytes, block);
      RETURN_IF_ERROR(AppendBlock(block, type, name, tensor));
    }
  }
  return tensor;
}

}  // namespace penstock
