#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/buffer.h"

namespace penstock {

// The type in which a quantised matrix stores its scales. No scale is rounded to fit a type. A
// scale of kTwoLevel is the product of an f16 factor, which the groups of a run of kRunInputs
// inputs share, and an integer of the group from -128 to 127. So is its offset, with a factor of
// its own. Both are the f32 product, and there are no zero points.
enum class ScaleType : uint8_t { kBf16, kF16, kF32, kTwoLevel };
inline constexpr int kRunInputs = 256;
// Bytes from a run's start to the factors of offsets, behind those of 32 scales.
inline constexpr int64_t kOffsetFactorsAt = 64;

// The meaning of a code. An E4M3 code is an 8-bit number of sign, 4 bits of exponent and 3 of
// mantissa (e4m3.h); its scales are kF32, and it has neither zero points nor offsets. Codes of
// kE2m1 and kIq4 have 4 bits and stand for the integers of a table (TableOf): twice the numbers of
// E2M1 (OCP Microscaling Formats 1.0, MXFP4), and those of ggml's IQ4 types. They have neither zero
// points nor offsets.
enum class CodeType : uint8_t { kInteger, kE4m3, kE2m1, kIq4 };

// The integers of a table's codes, each 128 more than its value; null for other code types.
using CodeTable = std::array<uint8_t, 16>;
const CodeTable* TableOf(CodeType type);

// The form of a quantised matrix. A weight is scale * (code - zero) + offset.
struct QuantisedFormat {
  CodeType code = CodeType::kInteger;
  int bits = 8;  // of a code: 4, 5, 6 or 8; those that are not integers have 4, and E4M3 has 8
  // Consecutive inputs of an output that share a scale: 16, 32, ... or 256, and 32 at least with
  // codes of 5 bits.
  int group = 128;
  // Every group has its own zero point; otherwise it is 2^(bits - 1), or 0 with offsets or E4M3, or
  // 128 for the integers of a table.
  bool zeros = false;
  ScaleType scale = ScaleType::kF16;
  bool offsets = false;  // every group has an offset, f32 or kTwoLevel; otherwise it is 0

  bool e4m3() const { return code == CodeType::kE4m3; }
  const CodeTable* table() const { return TableOf(code); }
  int zero() const {
    if (table() != nullptr) return 128;
    return offsets || e4m3() ? 0 : 1 << (bits - 1);
  }
  bool two_level() const { return scale == ScaleType::kTwoLevel; }
  int run() const { return two_level() ? kRunInputs / group : 1; }  // groups of a run
  // The bytes of a run of a panel of 32 outputs: its head, then the codes of each group. The head
  // has factors; then scales, zero points and offsets at the places named here.
  int64_t scales_at() const { return !two_level() ? 0 : offsets ? 128 : 64; }
  int64_t zeros_at() const { return scales_at() + run() * scale_bytes(); }
  int64_t offsets_at() const { return zeros_at() + (zeros ? 64 : 0); }
  int64_t head_bytes() const { return (offsets_at() + run() * offset_bytes() + 63) / 64 * 64; }
  int64_t code_bytes() const { return int64_t{4} * group * bits; }  // of a group
  // Inputs whose codes are in whole 32-bit words of an output, and the number of these words.
  int unit() const { return bits == 8 ? 4 : bits == 4 ? 8 : bits == 6 ? 16 : 32; }
  int unit_words() const { return unit() * bits / 32; }
  int64_t run_bytes() const { return head_bytes() + run() * code_bytes(); }
  // The bytes of a group's scales and offsets in a head.
  int64_t scale_bytes() const { return two_level() ? 32 : scale == ScaleType::kF32 ? 128 : 64; }
  int64_t offset_bytes() const { return !offsets ? 0 : two_level() ? 32 : 128; }
  std::string Name() const;  // e.g. "int4 g128" or "fp8 g128"

  bool operator==(const QuantisedFormat&) const = default;
};

// The weights of one output. Missing codes at the end count as zero weights.
struct QuantisedRow {
  std::span<const uint8_t> codes;  // [inputs], each below 2^bits; no NaN of E4M3
  std::span<const float> scales;   // [groups], finite, exact in the format's ScaleType
  std::span<const uint8_t> zeros;  // [groups], or empty if the format has no zero points
  std::span<const float> offsets;  // [groups], finite, or empty if the format has no offsets
  // [runs], finite and exact in f16. With kTwoLevel, `scales` and `offsets` are the integers that
  // these multiply; otherwise they are empty.
  std::span<const float> scale_factors = {};
  std::span<const float> offset_factors = {};
};

// A copy of a row. `codes` are [padded inputs]; scales and offsets of kTwoLevel are the products.
struct QuantisedRowCopy {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<float> offsets;
};

// Owns a weight matrix [outputs][inputs] of codes of 4 to 8 bits in the one layout that products of
// every batch size read. A panel has 32 outputs; in a panel, run after run of inputs, which is one
// group unless scales are kTwoLevel. A run has a head, padded to 64 bytes,
//   scales [32]; zero points, one byte each [32], padded to 64 bytes; offsets [32];
//   kTwoLevel: factors of scales [32], of offsets [32]; integers of scales [run][32], of offsets
//   [run][32], one byte each;
// and the codes of each of its groups:
//   8 bits: codes [group / 4][32][4]: four inputs of an output are one 32-bit word;
//   4 bits: codes [group / 8][32][4]: byte b of the word has input b in its low half and input
//           4 + b in its high half; codes of a table likewise;
//   6 bits: [group / 16][3][32][4]: the low four bits of inputs 0 to 7 and of inputs 8 to 15, as
//           codes of 4 bits, and a word of the high two bits: bits 2k and 2k + 1 of its byte b
//           belong to input 4k + b;
//   5 bits: [group / 32][5][32][4]: likewise four words of low bits, and a word of the fifth bits:
//           bit k of its byte b belongs to input 4k + b;
//   E4M3:   codes [group / 4][32][4]: the bytes of a word are inputs 0, 2, 1 and 3, so that the low
//           bytes of 16-bit halves are one pair of inputs and the high bytes the next.
// Inputs are padded to whole groups. Outputs never set are zero rows. Panels lie 256 bytes farther
// apart than they are long, as in PackedMatrix. Any thread may read it once it is filled.
class QuantisedMatrix {
 public:
  static constexpr int64_t kPanel = 32;

  QuantisedMatrix() = default;
  // `order` is empty, or [padded inputs]: the codes at position i belong to input order[i], or to
  // none if that is negative. CHECKs the format and the order.
  QuantisedMatrix(int64_t outputs, int64_t inputs, const QuantisedFormat& format,
                  std::vector<int32_t> order = {});
  // A description only, for Over.
  static QuantisedMatrix WithoutPanels(int64_t outputs, int64_t inputs,
                                       const QuantisedFormat& format,
                                       std::vector<int32_t> order = {});

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t groups() const { return (inputs_ + format_.group - 1) / format_.group; }
  int64_t padded() const { return groups() * format_.group; }  // inputs in whole groups
  int64_t runs() const { return (groups() + format_.run() - 1) / format_.run(); }
  int64_t panels() const { return (outputs_ + kPanel - 1) / kPanel; }
  size_t bytes() const { return memory_.bytes() + order_.size() * sizeof(int32_t); }
  const QuantisedFormat& format() const { return format_; }
  std::span<const int32_t> order() const { return order_; }

  int64_t panel_bytes() const {  // the last run may have fewer groups than the others
    return runs() * format_.head_bytes() + groups() * format_.code_bytes();
  }
  int64_t stride() const { return panel_bytes() + kPanelGap; }  // in bytes
  const std::byte* panel(int64_t index) const {
    return memory_.as<const std::byte>() + index * stride();
  }

  std::span<const std::byte> memory() const {  // of all panels
    return {memory_.as<const std::byte>(), memory_.bytes()};
  }

  size_t memory_bytes() const {  // of all panels, wherever they are
    return Buffer::InPages(static_cast<size_t>(panels() * stride()));
  }
  // The same matrix with its panels in `memory`, of memory_bytes(), or without panels if it is
  // empty.
  QuantisedMatrix Over(Buffer memory) const;

  // Codes are in the order of positions. CHECKs that scales are exact.
  void SetRow(int64_t output, const QuantisedRow& row);
  void GetRow(int64_t output, float* values) const;  // [inputs], each rounded to f32 once
  QuantisedRowCopy CopyRow(int64_t output) const;

 private:
  static constexpr int64_t kPanelGap = 256;

  std::byte* Run(int64_t output, int64_t run) const;
  void SetFactors(int64_t output, const QuantisedRow& row);

  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  QuantisedFormat format_;
  std::vector<int32_t> order_;
  Buffer memory_;
};

}  // namespace penstock
