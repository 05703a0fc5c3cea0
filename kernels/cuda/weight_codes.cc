#include "kernels/cuda/weight_codes.h"

#include <bit>
#include <cstring>

#include "kernels/bf16.h"

namespace penstock::cuda {
namespace {

constexpr int kBlockInputs = 32;  // that the order of inputs permutes

// The input, of 32, that lane `member` of a group of four uses as value `e` of operand pair `j` in
// step `t` (device/weights/quantised_gemm.cuh).
int InputOf(InputOrder order, int t, int j, int member, int e) {
  return order == InputOrder::kNatural ? 16 * t + 8 * j + 2 * member + e
                                       : 8 * member + 4 * t + 2 * j + e;
}

uint32_t ScaleBits(const CodeForm& form, float scale) {
  if (form.code == WeightCode::kE2m1) return ToBf16(scale).bits;
  if (!form.pairs) return std::bit_cast<uint32_t>(scale);
  const Bf16 high = ToBf16(scale), low = ToBf16(scale - ToFloat(high));
  return high.bits | uint32_t{low.bits} << 16;
}

// Writes one chunk of a panel.
class ChunkPacker {
 public:
  ChunkPacker(const CodeForm& form, std::span<const CodeRow, kCodePanel> rows)
      : form_(form), rows_(rows) {}

  void Pack(int64_t chunk, std::byte* to) const {
    std::memset(to, 0, form_.chunk_bytes());
    for (int g = 0; g < form_.groups(); ++g) {
      const int64_t group = chunk * form_.groups() + g;
      for (size_t row = 0; row < rows_.size(); ++row) {
        const bool has_codes = group * form_.group < std::ssize(rows_[row].codes);
        if (has_codes) PutGroup(rows_[row], group, g * kCodePanel + row, to);
      }
    }
    std::byte* codes = to + form_.codes_at();
    for (int block = 0; block < kCodeInputs / kBlockInputs; ++block) {
      for (int lane = 0; lane < 32; ++lane) PutCodes(chunk, block, lane, codes);
    }
  }

 private:
  void PutGroup(const CodeRow& row, int64_t group, size_t at, std::byte* to) const {
    const uint32_t scale = ScaleBits(form_, row.scales[group]);
    std::memcpy(to + form_.scale_bytes() * at, &scale, form_.scale_bytes());
    if (form_.zeros) to[form_.zeros_at() + at] = std::byte{row.zeros[group]};
    if (form_.offsets) std::memcpy(to + form_.offsets_at() + 4 * at, &row.offsets[group], 4);
  }

  uint32_t CodeAt(size_t row, int64_t input) const {
    return input < std::ssize(rows_[row].codes) ? rows_[row].codes[input] : 0;
  }

  // The codes of a block of 32 inputs that a lane uses.
  void PutCodes(int64_t chunk, int block, int lane, std::byte* to) const {
    const size_t output = lane / 4;
    for (int t = 0; t < 2; ++t) {
      uint32_t words[2] = {};  // with 4 bits, the first one only
      for (int operand = 0; operand < 4; ++operand) {
        const int j = operand / 2;
        for (int e = 0; e < 2; ++e) {
          const int64_t input =
              chunk * kCodeInputs + block * kBlockInputs + InputOf(form_.order, t, j, lane % 4, e);
          const uint32_t code = CodeAt(output + operand % 2 * 8, input);
          if (form_.bits() == 4) {
            words[0] |= code << (4 * operand + 16 * e);
          } else {
            words[j] |= code << (16 * (operand % 2) + 8 * e);
          }
        }
      }
      if (form_.bits() == 4) {
        const int unit = block / 2;
        std::memcpy(to + unit * 512 + lane * 16 + (block % 2 * 2 + t) * 4, words, 4);
      } else {
        std::memcpy(to + block * 512 + lane * 16 + t * 8, words, 8);
      }
    }
  }

  const CodeForm& form_;
  const std::span<const CodeRow, kCodePanel> rows_;
};

}  // namespace

void PackPanel(const CodeForm& form, int64_t inputs, std::span<const CodeRow, kCodePanel> rows,
               std::byte* to) {
  const ChunkPacker packer(form, rows);
  for (int64_t chunk = 0; chunk < ChunksOf(inputs); ++chunk, to += form.chunk_bytes()) {
    packer.Pack(chunk, to);
  }
}

}  // namespace penstock::cuda
