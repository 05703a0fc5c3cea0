#pragma once

// Tiles of keys and values of a paged KV cache in shared memory, as bf16.

#include "kernels/cuda/device/levels.cuh"
#include "kernels/cuda/kv_planes.h"

namespace penstock::cuda {

// The address of a 16-byte chunk of a row. The XOR swizzle puts the chunks of eight rows of one
// column into different banks.
template <int kRowBytes>
PENSTOCK_DEVICE int Swizzled(int row, int chunk) {
  static_assert(kRowBytes >= 128);
  return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}

PENSTOCK_DEVICE int SlotOf(const KvPlanes& kv, int token) {
  return token & ((1 << kv.page_log2) - 1);
}

// The row of a lane's address for LoadMatrix4 over rows 0-7 and 8-15 at two neighbouring chunks;
// the order of matrices is (0-7, first), (8-15, first), (0-7, second), (8-15, second).
PENSTOCK_DEVICE int RowsThenChunksRow(int lane) { return (lane & 7) + ((lane >> 3) & 1) * 8; }
PENSTOCK_DEVICE int RowsThenChunksChunk(int lane) { return lane >> 4; }
// The same for the order of matrices (0-7, first), (0-7, second), (8-15, first), (8-15, second).
PENSTOCK_DEVICE int ChunksThenRowsRow(int lane) { return (lane & 7) + (lane >> 4) * 8; }
PENSTOCK_DEVICE int ChunksThenRowsChunk(int lane) { return (lane >> 3) & 1; }

// Converts four codes of e4m3 to bf16, in two words. `scales` has the scale in both halves.
PENSTOCK_DEVICE void DequantiseE4m3(uint32_t codes, uint32_t scales, uint32_t* to) {
  PENSTOCK_UNROLL
  for (int i = 0; i < 2; ++i) {
    const uint32_t halves = E4m3ToHalves(i == 0 ? codes & 0xffffu : codes >> 16);
    to[i] = MultiplyBf16(PackBf16(LowHalf(halves), HighHalf(halves)), scales);
  }
}

// The scale and the minimum of a row of integers, in both halves of a word, for codes that are
// bf16's lowest bits: a code there is the integer times 2^-133, because bf16's numbers below 2^-125
// are equally far apart.
struct CodeRange {
  uint32_t scale;  // times 2^6
  uint32_t minimum;

  PENSTOCK_DEVICE explicit CodeRange(uint32_t scale_and_minimum) {
    constexpr uint32_t kTwoTo6 = 0x42804280u;
    const uint32_t plain = Permute(scale_and_minimum, 0, 0x1010u);
    scale = MultiplyBf16(plain, kTwoTo6);
    minimum = Permute(scale_and_minimum, 0, 0x3232u);
  }

  // Converts two codes, `tiny` numbers which times `units` are the integers times 2^-6. Each result
  // is rounded once.
  PENSTOCK_DEVICE uint32_t Dequantise(uint32_t tiny, uint32_t units) const {
    return MultiplyAddBf16(MultiplyBf16(tiny, units), scale, minimum);
  }
};
constexpr uint32_t kTwoTo127 = 0x7f007f00u, kTwoTo123 = 0x7d007d00u;

// The lower or the upper two bytes of a word, each in the lower half of a 16-bit number.
PENSTOCK_DEVICE uint32_t SpreadBytes(uint32_t word, bool upper) {
  return Permute(word, 0, upper ? 0x4342u : 0x4140u);
}

// Converts 16 codes of a row to two chunks of bf16. They are neighbours, or for four bits, whose
// bytes have one code of either half of the row, half a row apart.
template <KvCode kCode>
PENSTOCK_DEVICE void Dequantise16(const uint8_t* codes, const uint8_t* scale_of_row,
                                  Words4 (&to)[2]) {
  if constexpr (kCode == KvCode::kF8) {
    const uint32_t scales = *reinterpret_cast<const uint16_t*>(scale_of_row) * 0x00010001u;
    const auto words = *reinterpret_cast<const Words4*>(codes);
    PENSTOCK_UNROLL
    for (int w = 0; w < 4; ++w) {
      DequantiseE4m3(words.word[w], scales, to[w / 2].word + 2 * (w % 2));
    }
  } else if constexpr (kCode == KvCode::kI4) {
    const CodeRange range(*reinterpret_cast<const uint32_t*>(scale_of_row));
    const auto words = *reinterpret_cast<const Words2*>(codes);
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t bytes = SpreadBytes(words.word[i / 2], i % 2 != 0);
      to[0].word[i] = range.Dequantise(bytes & 0x000f000fu, kTwoTo127);
      to[1].word[i] = range.Dequantise(bytes & 0x00f000f0u, kTwoTo123);
    }
  } else {
    const CodeRange range(*reinterpret_cast<const uint32_t*>(scale_of_row));
    const auto words = *reinterpret_cast<const Words4*>(codes);
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t bytes = SpreadBytes(words.word[i / 2], i % 2 != 0);
      to[i / 4].word[i % 4] = range.Dequantise(bytes, kTwoTo127);
    }
  }
}

// Where the tokens of a sequence are. Tokens from `length` on are read as zeros.
struct KvSource {
  const KvPlanes& kv;
  const uint32_t* table;
  int kv_head;
  int length;
};

// The pages of a tile, by its groups of 16 tokens, each of which is in one page. They are loaded
// one tile ahead, so that no copy waits for its address.
template <int kTokens>
struct TilePages {
  static constexpr int kGroups = kTokens / 16;
  uint32_t id[kGroups];

  PENSTOCK_DEVICE void Load(const KvSource& from, int first_token) {
    PENSTOCK_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const int token = first_token + 16 * g;
      id[g] = from.table[(token < from.length ? token : 0) >> from.kv.page_log2];
    }
  }
  // The layer in the page of a group.
  PENSTOCK_DEVICE const std::byte* PageOf(const KvPlanes& kv, int group) const {
    uint32_t page = id[0];
    PENSTOCK_UNROLL
    for (int g = 1; g < kGroups; ++g) {
      if (group == g) page = id[g];
    }
    return kv.layer + static_cast<int64_t>(page) * kv.block_stride;
  }
};

// One plane's tiles of kTokens tokens. bf16 rows are copied as they are. Codes and their scales are
// copied, and converted when they are needed.
template <KvCode kCode, int kDim, int kTokens, int kThreads>
struct PlaneTile {
  static constexpr bool kCodes = kCode != KvCode::kBf16;
  static constexpr int kRow = kDim * 2;                          // of bf16
  static constexpr int kStoredRow = kDim * CodeBits(kCode) / 8;  // in a page
  static constexpr int kScales = kTokens * ScaleBytes(kCode);
  static constexpr int kStageBytes = kTokens * kStoredRow + kScales;
  static constexpr int kConvertedBytes = kCodes ? kTokens * kRow : 0;

  // Starts the asynchronous copies of the tile from `first_token` on.
  static PENSTOCK_DEVICE void Fetch(const KvSource& from, const KvPlane& plane,
                                    const TilePages<kTokens>& pages, int first_token, uint8_t* to) {
    constexpr int kChunks = kStoredRow / 16, kRows = kThreads / kChunks, kRounds = kTokens / kRows;
    const int slot = SlotOf(from.kv, first_token), page_mask = (1 << from.kv.page_log2) - 1;
    const int head = plane.offset + from.kv_head * plane.head_stride;
    if constexpr (IsLevels(kCode)) {
      FetchLevels(from, pages, first_token, head, to);
    } else {
      PENSTOCK_UNROLL
      for (int i = 0; i < kRounds; ++i) {
        const int row = i * kRows + ThreadX() / kChunks, chunk = ThreadX() % kChunks;
        const int group = kRows <= 16 ? i * kRows / 16 : row / 16;  // known when compiled, mostly
        const std::byte* source = pages.PageOf(from.kv, group) + head +
                                  ((slot + row) & page_mask) * kStoredRow + chunk * 16;
        const int at = kCodes ? row * kStoredRow + chunk * 16 : Swizzled<kRow>(row, chunk);
        CopyAsync16(to + at, source, first_token + row < from.length);
      }
    }
    if constexpr (kCodes) {
      constexpr int kTokensPerChunk = 16 / ScaleBytes(kCode);
      const int row = ThreadX() * kTokensPerChunk;
      if (row >= kTokens) return;
      const std::byte* source = pages.PageOf(from.kv, row / 16) + plane.scale_offset +
                                from.kv_head * plane.scale_head_stride +
                                ((slot + row) & page_mask) * ScaleBytes(kCode);
      CopyAsync16(to + kTokens * kStoredRow + ThreadX() * 16, source,
                  first_token + row < from.length);
    }
  }

  // A row of levels need not be a whole number of chunks, but the 16 rows of a group are, and lie
  // one behind the other. The last chunk of the sequence may have rows of no token behind its own.
  static PENSTOCK_DEVICE void FetchLevels(const KvSource& from, const TilePages<kTokens>& pages,
                                          int first_token, int head, uint8_t* to) {
    constexpr int kChunksOfGroup = kStoredRow;
    static_assert(kTokens / 16 * kChunksOfGroup <= kThreads);
    const int group = ThreadX() / kChunksOfGroup, chunk = ThreadX() % kChunksOfGroup;
    if (group >= kTokens / 16) return;
    const int slot = SlotOf(from.kv, first_token + 16 * group);
    const int row = 16 * group + chunk * 16 / kStoredRow;  // the first that the chunk has a byte of
    const std::byte* source = pages.PageOf(from.kv, group) + head + slot * kStoredRow + chunk * 16;
    CopyAsync16(to + ThreadX() * 16, source, first_token + row < from.length);
  }

  // Converts a tile that has arrived. Tokens from `valid` on are zeros, whatever their scales are.
  static PENSTOCK_DEVICE void Convert(const uint8_t* stage, int valid, uint8_t* to) {
    if constexpr (IsLevels(kCode)) {
      ConvertLevels(stage, valid, to);
    } else {
      ConvertCodes(stage, valid, to);
    }
  }

  static PENSTOCK_DEVICE void ConvertCodes(const uint8_t* stage, int valid, uint8_t* to) {
    constexpr int kParts = kDim / 16, kRounds = kTokens * kParts / kThreads;
    constexpr bool kNibbles = kCode == KvCode::kI4;
    PENSTOCK_UNROLL
    for (int i = 0; i < kRounds; ++i) {
      const int c = i * kThreads + ThreadX(), row = c / kParts, part = c % kParts;
      Words4 words[2] = {};
      if (row < valid) {
        Dequantise16<kCode>(stage + row * kStoredRow + part * (kNibbles ? 8 : 16),
                            stage + kTokens * kStoredRow + row * ScaleBytes(kCode), words);
      }
      const int first = kNibbles ? part : 2 * part, second = kNibbles ? part + kParts : first + 1;
      *reinterpret_cast<Words4*>(to + Swizzled<kRow>(row, first)) = words[0];
      *reinterpret_cast<Words4*>(to + Swizzled<kRow>(row, second)) = words[1];
    }
  }

  // A thread takes eight bytes of a row, which have eight codes of each of its quarters. The scale
  // of a row of no token is 0.
  static PENSTOCK_DEVICE void ConvertLevels(const uint8_t* stage, int valid, uint8_t* to) {
    constexpr int kBits = CodeBits(kCode), kParts = kDim / 32;  // parts of a row
    static_assert(kTokens * kParts == kThreads);
    const int row = ThreadX() / kParts, part = ThreadX() % kParts;
    const uint8_t* codes = stage + row * kStoredRow;
    const auto* scales = reinterpret_cast<const uint16_t*>(stage + kTokens * kStoredRow);
    const ScaledLevels<kBits> levels(row < valid ? scales[row] : 0u);
    const auto words = *reinterpret_cast<const Words2*>(codes + part * 8);
    PENSTOCK_UNROLL
    for (int quarter = 0; quarter < 4; ++quarter) {
      Words4 elements;
      levels.Decode4(words.word[0] >> (2 * quarter), elements.word);
      levels.Decode4(words.word[1] >> (2 * quarter), elements.word + 2);
      const int chunk = quarter * kParts + part;
      if constexpr (kBits == 3) SetSigns(codes[kDim / 4 + chunk], elements);
      *reinterpret_cast<Words4*>(to + Swizzled<kRow>(row, chunk)) = elements;
    }
  }
};

}  // namespace penstock::cuda
