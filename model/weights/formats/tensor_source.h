#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/bf16.h"
#include "model/weights/formats/block_types.h"

namespace penstock {

// kBlocks: quantised blocks of consecutive inputs (block_types.h).
enum class TensorDtype { kBf16, kF16, kF32, kI8, kE4m3, kI32, kI64, kU8, kBlocks };

std::string_view TensorDtypeName(TensorDtype dtype);  // as safetensors names it: "BF16"
size_t ElementBytes(TensorDtype dtype);               // not for kBlocks
inline bool IsFloat(TensorDtype dtype) { return dtype <= TensorDtype::kF32; }

// One tensor of a checkpoint, row-major, little-endian. `bytes` may be unaligned and stays valid
// as long as its source; the source may drop pages of it from memory at the next Get, to be read
// from the file again.
struct TensorView {
  // The row of the tensor that holds row `row` of the layer.
  int64_t StoredRow(int64_t row) const;

  TensorDtype dtype = TensorDtype::kBf16;
  const BlockType* blocks = nullptr;  // of kBlocks
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  // Rows come in heads of so many; in a head, those of the first and the second half alternate.
  // 0: rows are in order.
  int64_t interleaved_head = 0;
};

// This room, model/weights/formats, reads the tensors of checkpoints and unpacks those that are
// quantised. It may use base/, kernels/ and model/checkpoint only. It does not know which tensors a
// model has.
//
// Interface: the source of weights. Tensors have Hugging Face names
// ("model.layers.0.mlp.up_proj.weight").
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Returns NOT_FOUND if the checkpoint has no such tensor.
  virtual absl::StatusOr<TensorView> Get(const std::string& name) const = 0;
  virtual bool Has(const std::string& name) const = 0;
  // Whether the tensor exists and its dtype is kBlocks.
  virtual bool HasBlocks(const std::string&) const { return false; }
};

// Get, and INVALID_ARGUMENT that names the tensor unless its shape is `shape`, its size fits, and
// its dtype is a float's, or that one, or kBlocks.
absl::StatusOr<TensorView> GetFloats(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape);
absl::StatusOr<TensorView> GetIntegers(const TensorSource& source, const std::string& name,
                                       TensorDtype dtype, const std::vector<int64_t>& shape);
absl::StatusOr<TensorView> GetBlocks(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape);

// Element i of a tensor of floats, exact; of integers of 32 bits; of 8 bits.
float FloatAt(const TensorView& tensor, int64_t i);
uint32_t WordAt(const TensorView& tensor, int64_t i);
int8_t ByteAt(const TensorView& tensor, int64_t i);
// Converts elements [first, first + count) of floats, rounded to nearest.
void ToBf16s(const TensorView& tensor, int64_t first, int64_t count, Bf16* target);

}  // namespace penstock
