#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/bf16.h"
#include "kernels/buffer.h"

namespace penstock {

// Owns a bf16 weight matrix [outputs][inputs] in the one layout that products of every batch size
// read: [outputs / 32][inputs / 2][32][2], that is panels of 32 outputs, in each panel pairs of
// inputs, and in each pair the 32 outputs. Missing outputs of the last panel are zero rows. Panels
// lie kPanelGap elements farther apart than they are long: a product reads several panels at once,
// and addresses a power of two apart would fall into the same memory bank. Any thread may read it
// once it is filled.
class PackedMatrix {
 public:
  static constexpr int64_t kPanel = 32;

  PackedMatrix() = default;
  PackedMatrix(int64_t outputs, int64_t inputs);  // all zeros; CHECKs that inputs is even
  // A description only, for Over.
  static PackedMatrix WithoutPanels(int64_t outputs, int64_t inputs);

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }
  size_t bytes() const { return memory_.bytes(); }
  bool empty() const { return outputs_ == 0; }

  int64_t stride() const { return inputs_ * kPanel + kPanelGap; }  // elements from panel to panel
  const Bf16* panel(int64_t index) const { return memory_.as<const Bf16>() + index * stride(); }

  std::span<const std::byte> memory() const {  // of all panels
    return {memory_.as<const std::byte>(), memory_.bytes()};
  }

  size_t memory_bytes() const {  // of all panels, wherever they are
    return Buffer::InPages(static_cast<size_t>(panels() * stride()) * sizeof(Bf16));
  }
  // The same matrix with its panels in `memory`, of memory_bytes(), or without panels if it is
  // empty.
  PackedMatrix Over(Buffer memory) const;

  void SetRow(int64_t output, const Bf16* values);   // [inputs]
  void GetRow(int64_t output, float* values) const;  // [inputs]

 private:
  // 256 bytes. At batch 1 with panels of 128 KiB this decodes 5 % faster than no gap, and 2 %
  // faster than a gap of 1 or 2 KiB.
  static constexpr int64_t kPanelGap = 128;

  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  Buffer memory_;
};

}  // namespace penstock
