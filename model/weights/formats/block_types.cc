#include "model/weights/formats/block_types.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/f16.h"

namespace penstock {
namespace {

constexpr int kSubBlock = 32;     // elements that share a scale in blocks of 256
constexpr int kSubBlocks = 8;     // of a block of 256
constexpr uint8_t kMiddle = 128;  // the zero point of codes of 8 bits

int ByteOf(const std::byte* bytes, int64_t at) { return std::to_integer<int>(bytes[at]); }
int SignedByteOf(const std::byte* bytes, int64_t at) {
  return static_cast<int8_t>(ByteOf(bytes, at));
}

float HalfOf(const std::byte* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return HalfToFloat(bits);
}

// Elements i and 16 + i are the low and the high half of byte i.
int NibbleOf(const std::byte* bytes, int element) {
  return ByteOf(bytes, element % 16) >> element / 16 * 4 & 15;
}

// The fifth bit of an element, at its place above four others.
int FifthBitOf(const std::byte* bytes, int element) {
  return (ByteOf(bytes, element / 8) >> element % 8 & 1) << 4;
}

void UnpackQ80(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  for (int i = 0; i < 32; ++i) {
    target.codes[i] = static_cast<uint8_t>(SignedByteOf(block, 2 + i) + kMiddle);
  }
}

// The low halves of `count` bytes, and then the high halves.
void UnpackHalves(const std::byte* bytes, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    const auto both = static_cast<uint8_t>(bytes[i]);
    codes[i] = both & 15;
    codes[count + i] = both >> 4;
  }
}

void UnpackQ40(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  UnpackHalves(block + 2, 16, target.codes);
}

void UnpackQ41(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  target.offsets[0] = HalfOf(block + 2);
  UnpackHalves(block + 4, 16, target.codes);
}

void UnpackQ50(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  for (int i = 0; i < 32; ++i) {
    target.codes[i] = static_cast<uint8_t>(NibbleOf(block + 6, i) | FifthBitOf(block + 2, i));
  }
}

void UnpackQ51(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  target.offsets[0] = HalfOf(block + 2);
  for (int i = 0; i < 32; ++i) {
    target.codes[i] = static_cast<uint8_t>(NibbleOf(block + 8, i) | FifthBitOf(block + 4, i));
  }
}

// The scales and offsets of Q4_K and Q5_K: f16 factors of both, then 12 bytes with 6 bits for the
// scale and for the offset of each sub-block. Offsets are subtracted.
void UnpackScales(const std::byte* block, UnpackedBlock& target) {
  target.scale_factor = HalfOf(block);
  target.offset_factor = -HalfOf(block + 2);
  const std::byte* six = block + 4;
  for (int k = 0; k < kSubBlocks; ++k) {
    const int low = k % 4;
    int sc = ByteOf(six, low) & 63, m = ByteOf(six, low + 4) & 63;
    if (k >= 4) {
      sc = (ByteOf(six, k + 4) & 15) | ByteOf(six, low) >> 6 << 4;
      m = ByteOf(six, k + 4) >> 4 | ByteOf(six, low + 4) >> 6 << 4;
    }
    target.scales[k] = static_cast<float>(sc);
    target.offsets[k] = static_cast<float>(m);
  }
}

// Sub-blocks 2j and 2j + 1 are the low and the high halves of 32 bytes.
void UnpackSubBlocks(const std::byte* bytes, uint8_t* codes) {
  for (int j = 0; j < kSubBlocks / 2; ++j) {
    UnpackHalves(bytes + j * kSubBlock, kSubBlock, codes + j * 2 * kSubBlock);
  }
}

// Adds bits [first, first + count) of each of `size` bytes to codes, above their low four.
void AddHighBits(const std::byte* bytes, int first, int count, int size, uint8_t* codes) {
  const int mask = (1 << count) - 1;
  for (int i = 0; i < size; ++i) {
    const int high = static_cast<uint8_t>(bytes[i]) >> first & mask;
    codes[i] = static_cast<uint8_t>(codes[i] | high << 4);
  }
}

void UnpackQ4K(const std::byte* block, UnpackedBlock& target) {
  UnpackScales(block, target);
  UnpackSubBlocks(block + 16, target.codes);
}

void UnpackQ5K(const std::byte* block, UnpackedBlock& target) {
  UnpackScales(block, target);
  UnpackSubBlocks(block + 48, target.codes);
  for (int k = 0; k < kSubBlocks; ++k) {
    AddHighBits(block + 16, k, 1, kSubBlock, target.codes + k * kSubBlock);
  }
}

// Each half of 128 elements has 64 bytes of four low bits (32 elements l, then 32 of 32 + l, and in
// the high halves 64 + l and 96 + l), and 32 bytes whose pairs of bits belong to the same four.
void UnpackQ6K(const std::byte* block, UnpackedBlock& target) {
  const std::byte *scales = block + 192, *factor = block + 208;
  target.scale_factor = HalfOf(factor);
  for (int g = 0; g < 16; ++g) target.scales[g] = static_cast<float>(SignedByteOf(scales, g));
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = target.codes + 128 * half;
    UnpackHalves(block + half * 64, 64, codes);
    for (int quarter = 0; quarter < 4; ++quarter) {
      AddHighBits(block + 128 + half * 32, quarter * 2, 2, 32, codes + quarter * 32);
    }
  }
}

void UnpackNibbles(const std::byte* nibbles, uint8_t* codes) { UnpackHalves(nibbles, 16, codes); }

void UnpackIq4Nl(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = HalfOf(block);
  UnpackNibbles(block + 2, target.codes);
}

void UnpackIq4Xs(const std::byte* block, UnpackedBlock& target) {
  target.scale_factor = HalfOf(block);
  const int high = ByteOf(block, 2) | ByteOf(block, 3) << 8;
  for (int k = 0; k < kSubBlocks; ++k) {
    const int sc = (ByteOf(block + 4, k / 2) >> k % 2 * 4 & 15) | (high >> 2 * k & 3) << 4;
    target.scales[k] = static_cast<float>(sc - 32);
    UnpackNibbles(block + 8 + 16 * k, target.codes + kSubBlock * k);
  }
}

void UnpackMxfp4(const std::byte* block, UnpackedBlock& target) {
  target.scales[0] = Mxfp4Scale(ByteOf(block, 0));
  UnpackNibbles(block + 1, target.codes);
}

constexpr auto kTwoLevel = ScaleType::kTwoLevel;
constexpr BlockType kTypes[] = {
    {"Q8_0", 32, 34, {.bits = 8, .group = 32}, UnpackQ80},
    {"Q4_0", 32, 18, {.bits = 4, .group = 32}, UnpackQ40},
    {"Q4_1", 32, 20, {.bits = 4, .group = 32, .offsets = true}, UnpackQ41},
    {"Q5_0", 32, 22, {.bits = 5, .group = 32}, UnpackQ50},
    {"Q5_1", 32, 24, {.bits = 5, .group = 32, .offsets = true}, UnpackQ51},
    {"Q4_K", 256, 144, {.bits = 4, .group = 32, .scale = kTwoLevel, .offsets = true}, UnpackQ4K},
    {"Q5_K", 256, 176, {.bits = 5, .group = 32, .scale = kTwoLevel, .offsets = true}, UnpackQ5K},
    {"Q6_K", 256, 210, {.bits = 6, .group = 16, .scale = kTwoLevel}, UnpackQ6K},
    {"IQ4_NL", 32, 18, {.code = CodeType::kIq4, .bits = 4, .group = 32}, UnpackIq4Nl},
    {"IQ4_XS",
     256,
     136,
     {.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = kTwoLevel},
     UnpackIq4Xs},
    {"MXFP4", 32, 17, kMxfp4Format, UnpackMxfp4},
};

}  // namespace

// 2^-128 and 2^-127 are subnormal.
float Mxfp4Scale(int exponent) {
  const auto bits = exponent < 2 ? 0x00200000 << exponent : (exponent - 1) << 23;
  return std::bit_cast<float>(static_cast<uint32_t>(bits));
}

const BlockType* BlockTypeNamed(std::string_view name) {
  const auto* const found = std::ranges::find(kTypes, name, &BlockType::name);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace penstock
