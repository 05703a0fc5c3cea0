#pragma once

// One tile of values of a lossless codec, processed by a block in rows of 256 values: a lane has
// eight neighbouring values of a row.

#include "kernels/cuda/device/block_ops.cuh"
#include "kernels/cuda/device/quads.cuh"
#include "kernels/cuda/kv_codec.h"

namespace penstock::cuda {

constexpr int kTileWarps = 8;
constexpr int kTileThreads = kTileWarps * 32;
constexpr uint32_t kTileRow = 256;

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
};

PENSTOCK_DEVICE TileView TileAt(const LosslessParams& p, uint32_t tile, uint32_t tile_elements) {
  const uint32_t first = tile * tile_elements, left = p.elements - first;
  return {p.values + first, left < tile_elements ? left : tile_elements};
}

// The rows of this warp in a tile of kTile elements: of a block of kWarps, each warp has kCount
// neighbouring rows.
template <uint32_t kTile, int kWarps>
struct WarpRows {
  static constexpr int kCount = kTile / kTileRow / kWarps, kBlockWarps = kWarps;

  static PENSTOCK_DEVICE uint32_t RowOf(int i) {
    return static_cast<uint32_t>(ThreadX()) / 32 * kCount + static_cast<uint32_t>(i);
  }
};

// The split of a tile, computed by a block from octet(i) of its rows. `shared` has 256 +
// Rows::kBlockWarps words.
template <class Rows>
struct TileSplit {
  uint32_t base = 0, escapes = 0;
  bool stored = false;

  PENSTOCK_DEVICE TileSplit(const Rows& rows, uint32_t size, uint32_t* shared) : rows_(rows) {
    uint32_t* board = shared + 256;
    const uint32_t max = BlockMost<Rows::kBlockWarps>(HighestExponent(), board);
    base = max > 15 ? max - 15 : 0;
    escapes = CountEscapes(board);
    if (escapes <= size / 32) return;
    base = BestBase(shared);
    escapes = CountEscapes(board);
    stored = escapes > size / 8;
  }

 private:
  // The exponents without their mantissas have the order of the values, and none is NaN.
  PENSTOCK_DEVICE uint32_t HighestExponent() const {
    uint32_t most = 0;
    PENSTOCK_UNROLL
    for (int i = 0; i < Rows::kCount; ++i) {
      const Octet octet = rows_.octet(i);
      PENSTOCK_UNROLL
      for (int w = 0; w < 4; ++w) most = MaxBf16(most, octet.words.word[w] & 0x7f807f80u);
    }
    return ExponentOf(MaxBf16(most, most >> 16));
  }
  PENSTOCK_DEVICE uint32_t CountEscapes(uint32_t* board) const {
    uint32_t count = 0;
    PENSTOCK_UNROLL
    for (int i = 0; i < Rows::kCount; ++i) count += rows_.octet(i).CountEscapes(FourBytes(base));
    return BlockTotal<Rows::kBlockWarps>(count, board);
  }
  // Returns the window of 15 exponents that holds the most values; the lowest base of equal ones.
  PENSTOCK_DEVICE uint32_t BestBase(uint32_t* shared) const {
    for (int e = ThreadX(); e < 256; e += Rows::kBlockWarps * 32) shared[e] = 0;
    SyncBlock();
    PENSTOCK_UNROLL
    for (int row = 0; row < Rows::kCount; ++row) {
      const Octet octet = rows_.octet(row);
      PENSTOCK_UNROLL
      for (int i = 0; i < 8; ++i) AtomicAdd(&shared[ExponentOf(octet.bits(i))], 1u);
    }
    SyncBlock();
    uint32_t inside = 0;
    const int from = ThreadX();
    for (int e = from + 1; from <= kExponentBaseMax && e <= from + 15; ++e) inside += shared[e];
    // Among windows with equal counts the lower base has the higher rank.
    const uint32_t rank = from <= kExponentBaseMax ? inside << 8 | (255u - from) : 0u;
    return 255u - (BlockMost<Rows::kBlockWarps>(rank, shared + 256) & 255u);
  }

  const Rows& rows_;
};

// The escapes in a warp's rows, counted on the way and written at the end.
template <class Rows>
struct RowEscapes {
  uint32_t rows = 0;   // bit i: row i of the warp has escapes
  uint32_t count = 0;  // in this lane

  PENSTOCK_DEVICE void Count(int row, const Octet& octet, uint32_t bases) {
    const uint32_t more = octet.CountEscapes(bases);
    count += more;
    if (Ballot(more != 0) != 0) rows |= 1u << row;
  }

  // Writes the escapes of a tile to `lists` (aligned to 2 bytes): positions, exponents, and zeros
  // up to `end`. By a block, with a board.
  PENSTOCK_DEVICE void Write(const TileView& tile, const KvTile& plan, std::byte* lists,
                             std::byte* end, uint32_t* board) const {
    auto* positions = reinterpret_cast<uint16_t*>(lists);
    auto* exponents = reinterpret_cast<uint8_t*>(lists + 2 * plan.escapes);
    auto* padding = exponents + plan.escapes;
    if (ThreadX() < reinterpret_cast<uint8_t*>(end) - padding) padding[ThreadX()] = 0;
    if (plan.escapes == 0) return;
    uint32_t total = 0;
    const uint32_t of_warp = WarpTotal(count);
    uint32_t before =
        Shuffle(BlockBefore<Rows::kBlockWarps>(ThreadX() % 32 == 0 ? of_warp : 0, board, total), 0);
    for (int i = 0; i < Rows::kCount; ++i) {
      if ((rows >> i & 1u) == 0) continue;
      const uint32_t row = Rows::RowOf(i);
      const Octet octet = tile.Load(row);
      const uint32_t here = octet.CountEscapes(FourBytes(plan.base)), upto = WarpPrefix(here);
      uint32_t place = before + upto - here;
      PENSTOCK_UNROLL
      for (int k = 0; k < 8; ++k) {
        if (!octet.IsEscape(k, plan.base)) continue;
        positions[place] = static_cast<uint16_t>(TileView::At(row) + k);
        exponents[place++] = static_cast<uint8_t>(ExponentOf(octet.bits(k)));
      }
      before += Shuffle(upto, 31);
    }
  }
};

// Copies the bytes of a stored tile, which follow its head, by kThreads threads.
template <int kThreads>
PENSTOCK_DEVICE void CopyTile(const std::byte* from, std::byte* to, uint32_t size) {
  constexpr uint32_t kAhead = 4;
  const uint32_t count = size / 8;
  for (uint32_t first = ThreadX(); first < count; first += kAhead * kThreads) {
    Words4 words[kAhead];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kThreads;
      words[i] = LoadStreaming(from + (at < count ? at : first) * 16);
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kThreads;
      if (at < count) Store(to + at * 16, words[i]);
    }
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
template <class Rows>
PENSTOCK_DEVICE KvTile TileOf(const TileSplit<Rows>& split, uint32_t size, uint32_t coded) {
  if (split.stored) return StoredTile(size);
  return {.offset = 0,
          .bytes = CodedBytes(size, coded, split.escapes),
          .coded = coded,
          .escapes = static_cast<uint16_t>(split.escapes),
          .base = static_cast<uint8_t>(split.base),
          .mode = LosslessMode::kCoded};
}

constexpr int kPlaceWarps = 32;
constexpr int kPlaceThreads = kPlaceWarps * 32;

// Computes the offsets of the tiles from their sizes, and coded_bytes. Each block adds up the sizes
// of all tiles before its own. Grid: tiles / kPlaceThreads.
__global__ void __launch_bounds__(kPlaceThreads)
    PlaceTilesKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  KvTile* tiles = p.lossless.tiles;
  const uint32_t own = BlockX() * kPlaceThreads, mine = own + ThreadX();
  uint32_t before = 0, total = 0;
  for (uint32_t tile = ThreadX(); tile < own; tile += kPlaceThreads) before += tiles[tile].bytes;
  before = BlockTotal<kPlaceWarps>(before, board);
  const uint32_t bytes = mine < p.tiles ? tiles[mine].bytes : 0;
  const uint32_t offset = before + BlockBefore<kPlaceWarps>(bytes, board, total);
  if (mine < p.tiles) tiles[mine].offset = offset;
  if (mine + 1 == p.tiles) p.lossless.result->coded_bytes = offset + bytes;
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

// The untrusted escapes of a tile, which a warp writes into the values that it has decoded. The
// value of an escape has the sign and mantissa that are stored for it.
struct TileEscapes {
  const std::byte* signs;  // of all elements; the positions and exponents follow them
  uint32_t size, count;

  struct Item {
    uint32_t position = 0, exponent = 0, sign = 0;
    bool exists = false, follows = true;  // follows: its position is above that of the one before
  };
  PENSTOCK_DEVICE Item Load(uint32_t i) const {
    Item item;
    if (i >= count) return item;
    const auto* positions = reinterpret_cast<const uint16_t*>(signs + size);
    item.exists = true;
    item.position = positions[i];
    item.follows = i == 0 || positions[i - 1] < item.position;
    item.exponent = static_cast<uint32_t>(signs[size + 2 * count + i]);
    if (item.position < size) item.sign = static_cast<uint32_t>(signs[item.position]);
    return item;
  }

  // Writes those in [begin, end), after the values. `first` is this lane's first item. Returns in
  // all lanes false if an escape of the tile is beyond its end; then none is written.
  PENSTOCK_DEVICE bool Patch(const Item& first, uint32_t begin, uint32_t end,
                             uint16_t* values) const {
    bool beyond = false, disorder = false;
    const uint32_t lane = static_cast<uint32_t>(ThreadX()) % 32;
    for (uint32_t i = lane; i < count; i += 32) {
      const Item item = i == lane ? first : Load(i);
      beyond = beyond || item.position >= size;
      disorder = disorder || !item.follows;
    }
    if (Ballot(beyond) != 0) return false;
    // If two escapes name one value, the later one applies; then a single lane writes all of them
    // in order.
    const bool alone = Ballot(disorder) != 0;
    SyncWarp();  // the values have been written
    if (alone && lane != 0) return true;
    for (uint32_t i = lane; i < count; i += alone ? 1 : 32) {
      const Item item = i == lane ? first : Load(i);
      if (item.position < begin || item.position >= end) continue;
      values[item.position] = static_cast<uint16_t>((item.sign & 0x80u) << 8 | item.exponent << 7 |
                                                    (item.sign & 0x7fu));
    }
    return true;
  }
};

}  // namespace penstock::cuda
