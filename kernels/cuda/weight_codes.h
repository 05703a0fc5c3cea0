#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::cuda {

// What a code stands for: an integer, or a number of E4M3 (kernels/e4m3.h). A code of E2M1 (MXFP4)
// stands for twice its number, which makes it an integer.
enum class WeightCode : uint8_t { kInt8, kInt4, kE4m3, kE2m1 };

// The order in which a product adds up the inputs of an element, 16 of them at once: that of the
// kernels in skinny_gemm.cuh, or 0 to 15, 16 to 31 and so on.
enum class InputOrder : uint8_t { kOwn, kNatural };

constexpr int kCodePanel = 16;    // outputs that a warp computes
constexpr int kCodeInputs = 128;  // inputs of a chunk

// The form of a quantised weight in device memory. A weight is scale * (code - zero) + offset,
// computed in f32 with one rounding, and then rounded to bf16: products are those of this bf16
// weight. Panels of 16 outputs follow each other; in a panel, chunks of 128 inputs; in a chunk:
//   scales [128 / group][16], each an f32, or the sum of two bf16, of which the larger one comes
//   first, or with kE2m1 one bf16; zero points, one byte each [128 / group][16]; offsets [128 /
//   group][16] in f32; then the codes, in the order in which the lanes of a warp use them, 16 bytes
//   a lane: those of 32 inputs (8 bits) or 64 inputs (4 bits) for two outputs.
// Missing outputs and inputs are zeros.
struct CodeForm {
  WeightCode code = WeightCode::kInt8;
  InputOrder order = InputOrder::kOwn;
  bool pairs = false;    // scales are sums of two bf16, as those are that have 16 bits; 4 bits only
  bool zeros = false;    // every group has its own zero point; otherwise it is `zero`
  bool offsets = false;  // every group has an offset; otherwise it is 0
  int32_t zero = 0;
  // Inputs of an output that share a scale: 32, 64 or 128; with kInt8 also 16.
  int32_t group = 128;

  constexpr int bits() const {
    return code == WeightCode::kInt4 || code == WeightCode::kE2m1 ? 4 : 8;
  }
  constexpr int scale_bytes() const { return code == WeightCode::kE2m1 ? 2 : 4; }
  constexpr int groups() const { return kCodeInputs / group; }  // of a chunk
  // Offsets and sizes in a chunk, in bytes; all are multiples of 16.
  constexpr int zeros_at() const { return groups() * kCodePanel * scale_bytes(); }
  constexpr int offsets_at() const { return zeros_at() + (zeros ? groups() * kCodePanel : 0); }
  constexpr int codes_at() const {
    return offsets_at() + (offsets ? groups() * kCodePanel * 4 : 0);
  }
  constexpr int chunk_bytes() const { return codes_at() + kCodePanel * kCodeInputs * bits() / 8; }

  bool operator==(const CodeForm&) const = default;
};

constexpr int64_t ChunksOf(int64_t inputs) { return (inputs + kCodeInputs - 1) / kCodeInputs; }
constexpr int64_t PanelsOf(int64_t outputs) { return (outputs + kCodePanel - 1) / kCodePanel; }

// Consecutive outputs of a weight that have one form. `data` is in device memory.
struct WeightCodes {
  const uint8_t* data = nullptr;
  CodeForm form;
  int32_t first_output = 0;
  int32_t outputs = 0;
};

// An output of a panel on the host. A row with fewer codes than inputs, or with none, ends in
// zeros.
struct CodeRow {
  std::span<const uint8_t> codes;
  std::span<const float> scales;   // [groups], of the form's type
  std::span<const uint8_t> zeros;  // [groups], or empty
  std::span<const float> offsets;  // [groups], or empty
};

// Writes a panel of ChunksOf(inputs) chunks.
void PackPanel(const CodeForm& form, int64_t inputs, std::span<const CodeRow, kCodePanel> rows,
               std::byte* to);

}  // namespace penstock::cuda
