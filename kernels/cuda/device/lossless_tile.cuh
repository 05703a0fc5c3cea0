#pragma once

// One tile of values of a lossless codec, processed by a block: rows of 256 values go to the warps
// in turn, eight neighbouring values to a lane.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kTileWarps = 8;
constexpr int kTileThreads = kTileWarps * 32;
constexpr uint32_t kTileRow = 256;

PENSTOCK_DEVICE uint32_t ExponentOf(uint32_t bits) { return bits >> 7 & 0xffu; }
PENSTOCK_DEVICE uint32_t SignOf(uint32_t bits) { return (bits >> 8 & 0x80u) | (bits & 0x7fu); }
// The exponent code: 1 .. 15 inside the window above `base`; 0 for exponent 0 and for escapes.
PENSTOCK_DEVICE uint32_t CodeOf(uint32_t bits, uint32_t base) {
  const uint32_t code = ExponentOf(bits) - base;
  return ExponentOf(bits) != 0 && code - 1 < 15 ? code : 0;
}
PENSTOCK_DEVICE bool IsEscape(uint32_t bits, uint32_t base) {
  return ExponentOf(bits) != 0 && ExponentOf(bits) - base - 1 >= 15;
}

// The same operation on each of the four bytes of a word.
PENSTOCK_DEVICE uint32_t SubtractBytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kTop = 0x80808080u;
  return ((a | kTop) - (b & ~kTop)) ^ ((a ^ ~b) & kTop);
}
// Sets the upper bit of the bytes that are not zero; each byte is at most 128.
PENSTOCK_DEVICE uint32_t NonZeroBytes(uint32_t v) { return (v + 0x7f7f7f7fu) & 0x80808080u; }
// Sets all bits of the bytes whose upper bit is set; the other bits are zero.
PENSTOCK_DEVICE uint32_t FillBytes(uint32_t upper) { return (upper << 1) - (upper >> 7); }

// Four neighbouring values, a byte each: sign and mantissa, and exponent.
struct Quad {
  uint32_t signs, exponents;

  PENSTOCK_DEVICE static Quad Of(uint32_t first, uint32_t second) {
    const uint32_t low = Permute(first, second, 0x6420), high = Permute(first, second, 0x7531);
    return {(high & 0x80808080u) | (low & 0x7f7f7f7fu),
            (high << 1 & 0xfefefefeu) | (low >> 7 & 0x01010101u)};
  }
  // The exponent codes: 1 .. 15 inside the window above the base; 0 for exponent 0 and for escapes.
  // `bases` has the base in each byte. The difference of exponent 0 is outside the window, because
  // bases are at most kExponentBaseMax.
  PENSTOCK_DEVICE uint32_t Codes(uint32_t bases) const {
    const uint32_t code = SubtractBytes(exponents, bases);
    return code & ~FillBytes(NonZeroBytes(code >> 4 & 0x0f0f0f0fu));
  }
  // Sets the upper bit of the bytes of escapes.
  PENSTOCK_DEVICE uint32_t Escapes(uint32_t codes) const {
    const uint32_t inside = NonZeroBytes(codes);
    const uint32_t some = (exponents & 0x7f7f7f7fu) + 0x7f7f7f7fu;
    return (some | exponents) & 0x80808080u & ~inside;
  }
  // The quad of codes; escapes get exponent 0.
  PENSTOCK_DEVICE static Quad Join(uint32_t signs, uint32_t codes, uint32_t bases) {
    return {signs, (codes + bases) & FillBytes(NonZeroBytes(codes))};
  }
  // The values as two pairs of bf16.
  PENSTOCK_DEVICE Words2 Values() const {
    const uint32_t high = (signs & 0x80808080u) | (exponents >> 1 & 0x7f7f7f7fu);
    const uint32_t low = (signs & 0x7f7f7f7fu) | (exponents << 7 & 0x80808080u);
    return {{Permute(low, high, 0x5140), Permute(low, high, 0x7362)}};
  }
};
PENSTOCK_DEVICE uint32_t FourBytes(uint32_t byte) { return byte * 0x01010101u; }

// Eight neighbouring values of one lane.
struct Octet {
  Words4 words;
  PENSTOCK_DEVICE uint32_t bits(int i) const {
    return i % 2 == 0 ? words.word[i / 2] & 0xffffu : words.word[i / 2] >> 16;
  }
  PENSTOCK_DEVICE Quad quad(int i) const {
    return Quad::Of(words.word[2 * i], words.word[2 * i + 1]);
  }
};

struct LosslessTilesParams {
  LosslessParams lossless;
  uint32_t tiles = 0;
  uint32_t tile_elements = 0;
  uint32_t segments = 0;  // of a decoder's payload
  bool entropy = false;   // true: lxr; false: lx16
};

struct TileView {
  const Bf16* values;
  uint32_t size;  // a multiple of 64

  PENSTOCK_DEVICE uint32_t rows() const { return (size + kTileRow - 1) / kTileRow; }
  static PENSTOCK_DEVICE uint32_t At(uint32_t row) { return row * kTileRow + ThreadX() % 32 * 8; }
  // Loads this lane's values of a row. Values beyond the end are zeros, which need no escape.
  PENSTOCK_DEVICE Octet Load(uint32_t row) const {
    Octet octet = {};
    if (At(row) < size) octet.words = *reinterpret_cast<const Words4*>(values + At(row));
    return octet;
  }
  template <class Call>
  PENSTOCK_DEVICE void ForOctets(const Call& call) const {
    for (uint32_t row = ThreadX() / 32; row < rows(); row += kTileWarps) call(Load(row));
  }
};

PENSTOCK_DEVICE TileView TileAt(const LosslessParams& p, uint32_t tile, uint32_t tile_elements) {
  const uint32_t first = tile * tile_elements, left = p.elements - first;
  return {p.values + first, left < tile_elements ? left : tile_elements};
}

// The split of a tile, computed by a block. `shared` has 256 + kTileWarps words.
struct TileSplit {
  uint32_t base = 0, escapes = 0;
  bool stored = false;

  PENSTOCK_DEVICE TileSplit(const TileView& tile, uint32_t* shared) {
    uint32_t* board = shared + 256;
    uint32_t max = 0;
    tile.ForOctets([&](const Octet& octet) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32_t exponent = ExponentOf(octet.bits(i));
        max = exponent > max ? exponent : max;
      }
    });
    max = BlockMost<kTileWarps>(max, board);
    base = max > 15 ? max - 15 : 0;
    escapes = CountEscapes(tile, board);
    if (escapes <= tile.size / 32) return;
    base = BestBase(tile, shared);
    escapes = CountEscapes(tile, board);
    stored = escapes > tile.size / 8;
  }

 private:
  PENSTOCK_DEVICE uint32_t CountEscapes(const TileView& tile, uint32_t* board) const {
    uint32_t count = 0;
    tile.ForOctets([&](const Octet& octet) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 8; ++i) count += IsEscape(octet.bits(i), base) ? 1 : 0;
    });
    return BlockTotal<kTileWarps>(count, board);
  }
  // Returns the window of 15 exponents that holds the most values; the lowest base of equal ones.
  PENSTOCK_DEVICE static uint32_t BestBase(const TileView& tile, uint32_t* shared) {
    for (int e = ThreadX(); e < 256; e += kTileThreads) shared[e] = 0;
    SyncBlock();
    tile.ForOctets([&](const Octet& octet) {
      PENSTOCK_UNROLL
      for (int i = 0; i < 8; ++i) AtomicAdd(&shared[ExponentOf(octet.bits(i))], 1u);
    });
    SyncBlock();
    uint32_t inside = 0;
    const int base = ThreadX();
    for (int e = base + 1; base <= kExponentBaseMax && e <= base + 15; ++e) inside += shared[e];
    // Among windows with equal counts the lower base has the higher rank.
    const uint32_t rank = base <= kExponentBaseMax ? inside << 8 | (255u - base) : 0u;
    return 255u - (BlockMost<kTileWarps>(rank, shared + 256) & 255u);
  }
};

// Writes the escapes of a tile to `lists` (aligned to 2 bytes): positions, exponents, and zeros up
// to `end`. By a block, with a board.
PENSTOCK_DEVICE void WriteEscapes(const TileView& tile, const KvTile& plan, std::byte* lists,
                                  std::byte* end, uint32_t* board) {
  auto* positions = reinterpret_cast<uint16_t*>(lists);
  auto* exponents = reinterpret_cast<uint8_t*>(lists + 2 * plan.escapes);
  auto* padding = exponents + plan.escapes;
  if (ThreadX() < reinterpret_cast<uint8_t*>(end) - padding) padding[ThreadX()] = 0;
  if (plan.escapes == 0) return;
  uint32_t before = 0;
  for (uint32_t first = 0; first < tile.rows(); first += kTileWarps) {
    const uint32_t row = first + ThreadX() / 32;
    const Octet octet = tile.Load(row);
    uint32_t count = 0, total = 0;
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) count += IsEscape(octet.bits(i), plan.base) ? 1 : 0;
    uint32_t place = before + BlockBefore<kTileWarps>(count, board, total);
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) {
      if (!IsEscape(octet.bits(i), plan.base)) continue;
      positions[place] = static_cast<uint16_t>(TileView::At(row) + i);
      exponents[place++] = static_cast<uint8_t>(ExponentOf(octet.bits(i)));
    }
    before += total;
  }
}

// Copies a stored tile's bytes, which follow its head. By a block.
PENSTOCK_DEVICE void CopyTile(const std::byte* from, std::byte* to, uint32_t size) {
  for (uint32_t i = ThreadX(); i < size / 8; i += kTileThreads) {
    reinterpret_cast<Words4*>(to)[i] = reinterpret_cast<const Words4*>(from)[i];
  }
}

PENSTOCK_DEVICE void WriteHead(const KvTile& plan, std::byte* head) {
  if (ThreadX() != 0) return;
  *reinterpret_cast<Words4*>(head) = {{plan.coded,
                                       plan.escapes | static_cast<uint32_t>(plan.base) << 16 |
                                           static_cast<uint32_t>(plan.mode) << 24,
                                       0, 0}};
}

PENSTOCK_DEVICE uint32_t CodedBytes(uint32_t size, uint32_t coded, uint32_t escapes) {
  return (16 + coded + size + 3 * escapes + 15) / 16 * 16;
}
PENSTOCK_DEVICE KvTile StoredTile(uint32_t size) {
  return {.offset = 0,
          .bytes = 16 + 2 * size,
          .coded = 0,
          .escapes = 0,
          .base = 0,
          .mode = LosslessMode::kStored};
}
PENSTOCK_DEVICE KvTile CodedTile(const TileSplit& split, uint32_t size, uint32_t coded) {
  return {.offset = 0,
          .bytes = CodedBytes(size, coded, split.escapes),
          .coded = coded,
          .escapes = static_cast<uint16_t>(split.escapes),
          .base = static_cast<uint8_t>(split.base),
          .mode = LosslessMode::kCoded};
}

// Computes the offsets of the tiles from their sizes, and coded_bytes. One block.
__global__ void __launch_bounds__(kTileThreads)
    PlaceTilesKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  uint32_t before = 0;
  for (uint32_t first = 0; first < p.tiles; first += kTileThreads) {
    const uint32_t tile = first + ThreadX();
    uint32_t total = 0;
    const uint32_t bytes = tile < p.tiles ? p.lossless.tiles[tile].bytes : 0;
    const uint32_t offset = before + BlockBefore<kTileWarps>(bytes, board, total);
    if (tile < p.tiles) p.lossless.tiles[tile].offset = offset;
    before += total;
  }
  if (ThreadX() == 0) p.lossless.result->coded_bytes = before;
}

// True if the encoder's payload is smaller than the raw bytes; only then there is room for it.
PENSTOCK_DEVICE bool IsSmaller(const LosslessParams& p) {
  return p.result->coded_bytes < p.elements * 2;
}

PENSTOCK_DEVICE void Report(KvCodecResult* result, KvFault fault, uint32_t place) {
  AtomicMin(&result->fault, PackKvFault(fault, place));
}

// The fields of an untrusted head of a tile of `size` elements.
struct FoundHead {
  Words4 words;

  PENSTOCK_DEVICE KvTile Tile(uint32_t size) const {
    KvTile tile = StoredTile(size);
    tile.coded = words.word[0];
    tile.escapes = static_cast<uint16_t>(words.word[1]);
    tile.base = static_cast<uint8_t>(words.word[1] >> 16);
    tile.mode = static_cast<LosslessMode>(words.word[1] >> 24);
    if (tile.mode != LosslessMode::kStored) tile.bytes = CodedBytes(size, tile.coded, tile.escapes);
    return tile;
  }
  PENSTOCK_DEVICE bool IsKnown(uint32_t size) const {
    return words.word[1] >> 24 <= static_cast<uint32_t>(LosslessMode::kStored) &&
           (words.word[1] >> 16 & 0xffu) <= kExponentBaseMax &&
           (words.word[1] & 0xffffu) <= size / 8 && words.word[0] <= 4 * kLxrTile &&
           words.word[2] == 0 && words.word[3] == 0;
  }
};

// True if the codes have a valid size: whole, aligned words (lxr), or a nibble per element (lx16).
PENSTOCK_DEVICE bool HasItsCodes(const KvTile& tile, uint32_t size, bool entropy) {
  if (tile.mode == LosslessMode::kStored) return true;
  if (!entropy) return tile.coded == size / 2;
  return tile.coded >= kRansHeadBytes && tile.coded % 2 == 0;
}

// Loads the plan of a tile as one vector.
PENSTOCK_DEVICE KvTile LoadTile(const LosslessParams& p, uint32_t index) {
  const Words4 words = *reinterpret_cast<const Words4*>(p.tiles + index);
  return {.offset = words.word[0],
          .bytes = words.word[1],
          .coded = words.word[2],
          .escapes = static_cast<uint16_t>(words.word[3]),
          .base = static_cast<uint8_t>(words.word[3] >> 16),
          .mode = static_cast<LosslessMode>(words.word[3] >> 24)};
}

// True if the payload's structure is valid. All threads of a decoder get the same answer, whatever
// faults other blocks report meanwhile.
PENSTOCK_DEVICE bool IsFramed(const LosslessParams& p) { return p.result->framed == 1; }

PENSTOCK_DEVICE uint16_t PatchedExponent(uint16_t bits, uint8_t exponent) {
  return static_cast<uint16_t>((bits & 0x807fu) | static_cast<uint32_t>(exponent) << 7);
}

// Writes the untrusted escapes at `lists` into a decoded tile, after a barrier that waits for the
// block's decoded values. By a block of kWarps, with a board.
template <int kWarps>
PENSTOCK_DEVICE void PatchEscapes(const KvTile& tile, const std::byte* lists, uint32_t size,
                                  uint16_t* values, KvCodecResult* result, uint32_t* board) {
  const auto* positions = reinterpret_cast<const uint16_t*>(lists);
  const auto* exponents = reinterpret_cast<const uint8_t*>(lists + 2 * tile.escapes);
  uint32_t beyond = 0, disorder = 0;
  for (uint32_t i = ThreadX(); i < tile.escapes; i += kWarps * 32) {
    if (positions[i] >= size) beyond = 1;
    if (i > 0 && positions[i - 1] >= positions[i]) disorder = 1;
  }
  const uint32_t faults = BlockTotal<kWarps>(beyond << 16 | disorder, board);
  if (faults >> 16 != 0) {
    if (ThreadX() == 0) Report(result, KvFault::kEscape, static_cast<uint32_t>(BlockX()));
    return;
  }
  // If two escapes name one value, the later one applies; then a single thread writes all of them
  // in order.
  const bool alone = faults != 0;
  const uint32_t first = alone ? (ThreadX() == 0 ? 0u : tile.escapes) : ThreadX();
  for (uint32_t i = first; i < tile.escapes; i += alone ? 1 : kWarps * 32) {
    uint16_t& value = values[positions[i]];
    value = PatchedExponent(value, exponents[i]);
  }
}

}  // namespace penstock::cuda
