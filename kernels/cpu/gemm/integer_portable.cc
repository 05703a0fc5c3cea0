// Plain C++; the definition of what the other tables compute.

#include "kernels/bf16.h"
#include "kernels/cpu/gemm/integer_ops.h"
#include "kernels/f16.h"

namespace penstock::simd {
namespace {

constexpr int kColumns = 32;

float PortableMagnitude(const float* x, int64_t size) {
  uint32_t max = 0;
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffffu;  // Unsigned order is the order of magnitudes, with NaN at the top.
    max = bits > max ? bits : max;
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &max, sizeof(max));
  return magnitude;
}

void PortableQuantise(const float* x, int64_t size, float factor, int16_t* codes) {
  // Adding 1.5 * 2^23 leaves no bits for a fraction, which rounds to nearest.
  for (int64_t i = 0; i < size; ++i) {
    codes[i] = static_cast<int16_t>(x[i] * factor + 12582912.0f - 12582912.0f);
  }
}

float ScaleAt(ScaleType type, const std::byte* scales, int index) {
  if (type == ScaleType::kF32) {
    float value;
    __builtin_memcpy(&value, scales + 4 * index, sizeof(value));
    return value;
  }
  uint16_t bits;
  __builtin_memcpy(&bits, scales + 2 * index, sizeof(bits));
  return type == ScaleType::kBf16 ? ToFloat({bits}) : HalfToFloat(bits);
}

// The product of a factor and the integer of a group, for one column.
float TwoLevelAt(const std::byte* factors, const std::byte* integers, int index) {
  return ScaleAt(ScaleType::kF16, factors, index) *
         static_cast<float>(static_cast<int8_t>(integers[index]));
}

// The scale of column `c` of group `i` of a run.
float ScaleOf(const PanelForm& form, const std::byte* head, int i, int c) {
  const std::byte* scales = head + form.scales_at;
  if (form.scale == ScaleType::kTwoLevel) return TwoLevelAt(head, scales + kColumns * i, c);
  return ScaleAt(form.scale, scales, c);
}

float OffsetOf(const PanelForm& form, const std::byte* head, int i, int c) {
  const std::byte* offsets = head + form.offsets_at;
  if (form.scale != ScaleType::kTwoLevel) return ScaleAt(ScaleType::kF32, offsets, c);
  return TwoLevelAt(head + kOffsetFactorsAt, offsets + kColumns * i, c);
}

constexpr int64_t kWordStride = 4 * kColumns;  // bytes from an output's word to its next one

// Unpacks one unit of codes of one output.
template <Codes kCodes>
void UnpackUnit(const std::byte* words, const uint8_t* table, int zero, int16_t* weights) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  for (int i = 0; i < kUnit.inputs; ++i) {
    const int part = i / 4;
    const int byte = static_cast<int>(words[part / 2 * kWordStride + i % 4]);
    int code = kCodes == Codes::kBytes ? byte : part % 2 == 0 ? byte & 15 : byte >> 4;
    if constexpr (kUnit.high_bits > 0) {
      const int high = static_cast<int>(words[kUnit.low_words * kWordStride + i % 4]);
      code |= (high >> (part * kUnit.high_bits) & ((1 << kUnit.high_bits) - 1)) << 4;
    }
    if (table != nullptr) code = table[code];
    const int pair = part * 2 + i % 2;  // (0, 2), (1, 3)
    weights[pair * 2 * kColumns + i % 4 / 2] = static_cast<int16_t>(code - zero);
  }
}

// Unpacks the codes of one group.
template <Codes kCodes>
void UnpackGroup(const PanelForm& form, const std::byte* codes, const std::byte* zeros,
                 int16_t* weights) {
  constexpr CodesUnit kUnit = kUnitOf<kCodes>;
  for (int i = 0; i < form.group; i += kUnit.inputs, codes += kUnit.words * kWordStride) {
    for (int c = 0; c < kColumns; ++c) {
      const int zero = form.zeros ? static_cast<int>(zeros[c]) : form.zero;
      UnpackUnit<kCodes>(codes + 4 * c, form.table, zero, weights + 2 * c);
    }
    weights += kUnit.inputs * kColumns;
  }
}

void UnpackCodes(const PanelForm& form, const std::byte* codes, const std::byte* zeros,
                 int16_t* weights) {
  switch (form.codes) {
    case Codes::kBytes:
      return UnpackGroup<Codes::kBytes>(form, codes, zeros, weights);
    case Codes::kFive:
      return UnpackGroup<Codes::kFive>(form, codes, zeros, weights);
    case Codes::kSix:
      return UnpackGroup<Codes::kSix>(form, codes, zeros, weights);
    default:
      return UnpackGroup<Codes::kNibbles>(form, codes, zeros, weights);
  }
}

void PortableUnpack(const PanelForm& form, const std::byte* panel, int64_t groups,
                    const UnpackedGroups& target) {
  int16_t* weights = target.weights;
  const std::byte *head = panel, *codes = panel;
  for (int64_t g = 0; g < groups; ++g) {
    const int in_run = static_cast<int>(g % form.run);
    if (in_run == 0) {
      head = codes;
      codes += form.head_bytes;
    }
    for (int c = 0; c < kColumns; ++c) {
      target.scales[g * kColumns + c] = ScaleOf(form, head, in_run, c);
      if (form.offsets) target.offsets[g * kColumns + c] = OffsetOf(form, head, in_run, c);
    }
    UnpackCodes(form, codes, head + form.zeros_at, weights);
    codes += form.code_bytes;
    weights += int64_t{form.group} * kColumns;
  }
}

void PortableWide(const WideProduct& product) {
  const int64_t pairs = product.pairs, rows = product.rows;
  for (int64_t g = 0; g < product.groups; ++g) {
    const int16_t* a = product.input + g * pairs * rows * 2;
    const int16_t* weights = product.panel.weights + g * pairs * 2 * kColumns;
    const float* scales = product.panel.scales + g * kColumns;
    for (int64_t r = 0; r < rows; ++r) {
      int32_t sums[kColumns] = {};
      for (int64_t p = 0; p < pairs; ++p) {
        const int16_t* x = a + (p * rows + r) * 2;
        const int16_t* w = weights + p * 2 * kColumns;
        for (int c = 0; c < kColumns; ++c) sums[c] += x[0] * w[2 * c] + x[1] * w[2 * c + 1];
      }
      float* row = product.tile + r * kColumns;
      for (int c = 0; c < kColumns; ++c) {
        row[c] = __builtin_fmaf(static_cast<float>(sums[c]), scales[c], row[c]);
      }
      if (product.panel.offsets == nullptr) continue;
      const auto sum = static_cast<float>(product.sums[g * rows + r]);
      for (int c = 0; c < kColumns; ++c) {
        row[c] = __builtin_fmaf(sum, product.panel.offsets[g * kColumns + c], row[c]);
      }
    }
  }
}

}  // namespace

extern const IntegerOps kPortableIntegerOps = {.magnitude = PortableMagnitude,
                                               .quantise = PortableQuantise,
                                               .unpack = PortableUnpack,
                                               .multiply_wide = PortableWide,
                                               .multiply_narrow = nullptr,
                                               .takes_planes = nullptr};

}  // namespace penstock::simd
