// Weights as GGUF files store them: rows of blocks (block_types.h).

#include <algorithm>
#include <span>
#include <vector>

#include "model/weights/formats/quantised_tensor.h"
#include "model/weights/formats/row_ranges.h"

namespace penstock {
namespace {

// The places of a tensor's rows that blocks fill.
class BlockTarget {
 public:
  BlockTarget(const BlockType& type, const std::string& name, QuantisedTensor& tensor)
      : type_(type), name_(name), tensor_(tensor) {
    const auto rows = static_cast<size_t>(tensor.rows);
    const size_t groups = rows * static_cast<size_t>(tensor.groups());
    const size_t runs = type.format.two_level() ? rows * static_cast<size_t>(tensor.runs()) : 0;
    tensor.codes.resize(rows * static_cast<size_t>(tensor.inputs));
    tensor.scales.resize(groups);
    tensor.scale_factors.resize(runs);
    if (!type.format.offsets) return;
    tensor.offsets.resize(groups);
    tensor.offset_factors.resize(runs);
  }

  // Puts the block of a row's inputs [index * elements, ...) there. INVALID_ARGUMENT if a scale or
  // an offset is not finite. Threads may put different blocks.
  absl::Status Put(int64_t row, int64_t index, const UnpackedBlock& block) {
    const int64_t number = row * (tensor_.inputs / type_.elements) + index;
    const auto groups = static_cast<size_t>(type_.elements / type_.format.group);
    const size_t factors = type_.format.two_level() ? 1 : 0;
    std::copy_n(block.codes, type_.elements, tensor_.codes.begin() + number * type_.elements);
    RETURN_IF_ERROR(Put(row, number, {block.scales, groups}, tensor_.scales));
    RETURN_IF_ERROR(Put(row, number, {&block.scale_factor, factors}, tensor_.scale_factors));
    if (!type_.format.offsets) return absl::OkStatus();
    RETURN_IF_ERROR(Put(row, number, {block.offsets, groups}, tensor_.offsets));
    return Put(row, number, {&block.offset_factor, factors}, tensor_.offset_factors);
  }

 private:
  absl::Status Put(int64_t row, int64_t number, std::span<const float> values,
                   std::vector<float>& target) const {
    std::ranges::copy(values, target.begin() + number * std::ssize(values));
    if (std::ranges::all_of(values, [](float value) { return value - value == 0; })) {
      return absl::OkStatus();
    }
    return InvalidArgument("tensor {}: a scale of output {} is not finite", name_, row);
  }

  const BlockType& type_;
  const std::string& name_;
  QuantisedTensor& tensor_;
};

}  // namespace

absl::StatusOr<QuantisedTensor> ReadBlocks(const TensorSource& source, const std::string& module,
                                           int64_t rows, int64_t inputs, int threads) {
  const std::string name = module + ".weight";
  ASSIGN_OR_RETURN(const TensorView view, GetBlocks(source, name, {rows, inputs}));
  const BlockType& type = *view.blocks;
  QuantisedTensor tensor{.rows = rows, .inputs = inputs, .format = type.format};
  BlockTarget target(type, name, tensor);
  const int64_t blocks = inputs / type.elements;
  const auto unpack = [&](int64_t first, int64_t last) -> absl::Status {
    UnpackedBlock block;
    for (int64_t row = first; row < last; ++row) {
      const std::byte* from = view.bytes.data() + view.StoredRow(row) * blocks * type.bytes;
      for (int64_t b = 0; b < blocks; ++b) {
        type.unpack(from + b * type.bytes, block);
        RETURN_IF_ERROR(target.Put(row, b, block));
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ForRowRanges(threads, rows, unpack));
  return tensor;
}

}  // namespace penstock
