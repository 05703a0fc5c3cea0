#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/quantised_matrix.h"
#include "model/checkpoint/quantisation_config.h"
#include "model/weights/formats/tensor_source.h"

namespace penstock {

// The weight of one linear layer, read from any quantised checkpoint format: weight = scale *
// (code - zero) + offset. Scales of groups wider than the kernels' are repeated.
struct QuantisedTensor {
  int64_t rows = 0;
  int64_t inputs = 0;
  QuantisedFormat format;
  std::vector<uint8_t> codes;  // [rows][inputs], in the order of positions
  std::vector<float> scales;   // [rows][groups]
  std::vector<uint8_t> zeros;  // [rows][groups], or empty if every one is format.zero()
  std::vector<float> offsets;  // [rows][groups], or empty if the format has none
  // [rows][runs], as QuantisedRow has them; empty unless format.two_level().
  std::vector<float> scale_factors, offset_factors;
  std::vector<int32_t> order;  // the input of each position (GPTQ's act order); empty: in order

  int64_t groups() const { return (inputs + format.group - 1) / format.group; }
  int64_t runs() const { return (groups() + format.run() - 1) / format.run(); }
  QuantisedRow Row(int64_t row) const;
  // Replaces two levels of scales and offsets by their products, of type kF32, which are equal.
  void MultiplyFactors();
  // Makes integers of `bits` bits, more than they have, of the codes. Weights are the same.
  // Requires a format without zero points.
  void Widen(int bits);
};

// The groups of inputs that a checkpoint's scales belong to, and the groups of the kernels that
// they are cut into.
struct GroupShape {
  int64_t stored = 0;        // inputs of a scale in the checkpoint
  int64_t stored_count = 0;  // of scales of an output
  int group = 0;             // QuantisedFormat::group
  // The stored scale of a kernel's group.
  int64_t StoredOf(int64_t g) const { return g * group / stored; }
};
// `size` is what the configuration says, 0 for whole rows. INVALID_ARGUMENT names `field` unless
// the size is 32, 64, 128 or a multiple of 256.
absl::StatusOr<GroupShape> GroupShapeOf(int64_t size, int64_t inputs, const std::string& field);

// The number of bits of codes of which `words` 32-bit words hold `values`: 4 or 8, else
// INVALID_ARGUMENT that names the tensor.
absl::StatusOr<int> BitsOfWords(int64_t words, int64_t values, const std::string& tensor);

// The name of the quantised tensor that holds the weight of `module`
// ("model.layers.0.mlp.up_proj"): weight_packed, qweight, blocks, or weight with bytes or GGUF's
// blocks; empty if there is none. Bytes have scales beside them, weight_scale or weight_scale_inv.
std::string QuantisedNameOf(const TensorSource& source, const std::string& module);

// Reads the weight of `module`, [rows][inputs]. The format follows from the tensors that exist;
// errors name the tensor or the field of config.json. `threads` may unpack GGUF's blocks.
absl::StatusOr<QuantisedTensor> ReadQuantised(const QuantisationConfig& config,
                                              const TensorSource& source, const std::string& module,
                                              int64_t rows, int64_t inputs, int threads = 1);

// The formats. Packed: compressed-tensors' pack-quantized, weight_packed and its companions. Bytes:
// int-quantized and naive-quantized. E4M3: float-quantized and the method fp8. Columns: GPTQ's and
// AWQ's qweight, whose outputs are innermost. Blocks: those of GGUF files (block_types.h). MXFP4:
// gpt-oss's blocks and scales.
absl::StatusOr<QuantisedTensor> ReadPackedRows(const QuantisationConfig& config,
                                               const TensorSource& source,
                                               const std::string& module, int64_t rows,
                                               int64_t inputs);
absl::StatusOr<QuantisedTensor> ReadByteRows(const QuantisationConfig& config,
                                             const TensorSource& source, const std::string& module,
                                             int64_t rows, int64_t inputs);
absl::StatusOr<QuantisedTensor> ReadE4m3Rows(const QuantisationConfig& config,
                                             const TensorSource& source, const std::string& module,
                                             int64_t rows, int64_t inputs);
absl::StatusOr<QuantisedTensor> ReadGptq(const QuantisationConfig& config,
                                         const TensorSource& source, const std::string& module,
                                         int64_t rows, int64_t inputs);
absl::StatusOr<QuantisedTensor> ReadAwq(const QuantisationConfig& config,
                                        const TensorSource& source, const std::string& module,
                                        int64_t rows, int64_t inputs);

absl::StatusOr<QuantisedTensor> ReadMxfp4Rows(const TensorSource& source, const std::string& module,
                                              int64_t rows, int64_t inputs);
absl::StatusOr<QuantisedTensor> ReadBlocks(const TensorSource& source, const std::string& module,
                                           int64_t rows, int64_t inputs, int threads);

// Fills tensor.scales from at(row, stored group) of `scales`, and the format's scale type, which is
// kF32 for E4M3.
// INVALID_ARGUMENT names the tensor if a scale is not finite.
absl::Status FillScales(const TensorView& scales, const std::string& name, const GroupShape& shape,
                        const auto& at, QuantisedTensor& tensor) {
  constexpr ScaleType kTypes[] = {ScaleType::kBf16, ScaleType::kF16, ScaleType::kF32};
  if (!tensor.format.e4m3()) tensor.format.scale = kTypes[static_cast<size_t>(scales.dtype)];
  const int64_t groups = tensor.groups();
  tensor.scales.resize(static_cast<size_t>(tensor.rows * groups));
  for (int64_t row = 0; row < tensor.rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = FloatAt(scales, at(row, shape.StoredOf(g)));
      if (!(scale - scale == 0)) {
        return InvalidArgument("tensor {}: the scale of output {} is {}, it must be finite", name,
                               row, scale);
      }
      tensor.scales[static_cast<size_t>(row * groups + g)] = scale;
    }
  }
  return absl::OkStatus();
}

// Fills tensor.zeros from at(row, stored group), and leaves it empty if all are format.zero().
void FillZeros(const GroupShape& shape, const auto& at, QuantisedTensor& tensor) {
  const int64_t groups = tensor.groups();
  tensor.zeros.resize(static_cast<size_t>(tensor.rows * groups));
  bool symmetric = true;
  for (int64_t row = 0; row < tensor.rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int zero = at(row, shape.StoredOf(g));
      symmetric = symmetric && zero == tensor.format.zero();
      tensor.zeros[static_cast<size_t>(row * groups + g)] = static_cast<uint8_t>(zero);
    }
  }
  if (symmetric) tensor.zeros.clear();
  tensor.format.zeros = !symmetric;
}

// Fills tensor.order from GPTQ's g_idx, the group of every input. INVALID_ARGUMENT unless every
// group but the last has `shape.stored` inputs. Leaves it empty if inputs are in order.
absl::Status FillOrder(const TensorView& group_of_input, const std::string& name,
                       const GroupShape& shape, QuantisedTensor& tensor);

}  // namespace penstock
