// Weights as GGUF files store them: rows of blocks (block_types.h).

#include <algorithm>
#include <span>

#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

// Appends values to those of a tensor. INVALID_ARGUMENT if one of them is not finite.
absl::Status Append(std::span<const float> values, const std::string& name,
                    const QuantisedTensor& tensor, std::vector<float>& target) {
  target.insert(target.end(), values.begin(), values.end());
  if (std::ranges::all_of(values, [](float value) { return value - value == 0; })) {
    return absl::OkStatus();
  }
  return InvalidArgument("tensor {}: a scale of output {} is not finite", name,
                         static_cast<int64_t>(tensor.codes.size() - 1) / tensor.inputs);
}

// Appends one block to the rows of a tensor.
absl::Status AppendBlock(const UnpackedBlock& block, const BlockType& type, const std::string& name,
                         QuantisedTensor& tensor) {
  const auto groups = static_cast<size_t>(type.elements / type.format.group);
  const size_t factors = type.format.two_level() ? 1 : 0;
  tensor.codes.insert(tensor.codes.end(), block.codes, block.codes + type.elements);
  RETURN_IF_ERROR(Append({block.scales, groups}, name, tensor, tensor.scales));
  RETURN_IF_ERROR(Append({&block.scale_factor, factors}, name, tensor, tensor.scale_factors));
  if (!type.format.offsets) return absl::OkStatus();
  RETURN_IF_ERROR(Append({block.offsets, groups}, name, tensor, tensor.offsets));
  return Append({&block.offset_factor, factors}, name, tensor, tensor.offset_factors);
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
