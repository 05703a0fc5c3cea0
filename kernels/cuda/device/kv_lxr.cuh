#pragma once

// The lxr codec: exponents under rANS. A block splits a tile and counts its codes; a warp encodes
// them to scratch, from the last to the first; when all sizes are known, a block assembles the tile
// in the payload.

#include "kernels/cuda/device/kv_lx16.cuh"
#include "kernels/cuda/device/rans.cuh"

namespace penstock::cuda {

// One counter per symbol and thread, each in the bank of its lane.
constexpr int kSplitWarps = 16;
constexpr int kSplitThreads = kSplitWarps * 32;
constexpr int kLxrCounters = kSplitWarps * kRansSymbols * 32;
constexpr int kLxrSplitShared =
    2 * kLxrTile + (256 + kSplitWarps + kLxrCounters + kRansSymbols) * 4;

// Scratch of one lxr tile.
struct LxrScratch {
  std::byte* start;

  PENSTOCK_DEVICE LxrScratch(const LosslessParams& p, uint32_t tile)
      : start(p.words + tile * kLxrTileScratch) {}
  PENSTOCK_DEVICE uint8_t* frequencies() const { return reinterpret_cast<uint8_t*>(start); }
  PENSTOCK_DEVICE uint32_t* states() const {
    return reinterpret_cast<uint32_t*>(start + kRansSymbols);
  }
  PENSTOCK_DEVICE uint16_t* words_end() const {
    return reinterpret_cast<uint16_t*>(start + kLxrTileScratch);
  }
};

// Returns, in all lanes, the lane with the highest `key`; the lowest of equal ones.
PENSTOCK_DEVICE int LaneOfMost(uint64_t key) {
  uint32_t best = ThreadX() % 32;
  PENSTOCK_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint64_t other = static_cast<uint64_t>(ShuffleXor(static_cast<uint32_t>(key >> 32), mask))
                               << 32 |
                           ShuffleXor(static_cast<uint32_t>(key), mask);
    const uint32_t lane = ShuffleXor(best, mask);
    if (other > key || (other == key && lane < best)) key = other, best = lane;
  }
  return static_cast<int>(best);
}

// NormaliseRansFrequencies (kernels/kv_codec.h) by a warp; `count` is that of symbol `lane`. At
// least one count must not be zero.
PENSTOCK_DEVICE uint32_t NormalisedFrequency(uint32_t count) {
  const int lane = ThreadX() % 32;
  const bool symbol = lane < kRansSymbols;
  const double total = WarpTotal(count);
  const double share = Multiply(Divide(static_cast<double>(count), total), double{kRansSlots});
  uint32_t f = symbol ? static_cast<uint32_t>(share < 1 ? 1 : share > 240 ? 240 : share) : 0;
  int32_t left = kRansSlots - static_cast<int32_t>(WarpTotal(f));
  const double weight = Add(static_cast<double>(count), 1e-9);
  // Greedy correction: while slots are left, give one to the symbol that saves the most bits by it;
  // while there are too many, take one from the symbol that loses the fewest bits.
  while (left != 0) {
    const bool able = symbol && (left < 0 ? f > 1 : f < 240);
    const double gain = Divide(weight, Add(static_cast<double>(f), left > 0 ? 0.5 : -0.5));
    // The bits of positive doubles have the order of the numbers.
    const uint64_t bits = DoubleToBits(gain);
    if (LaneOfMost(!able ? 0 : left > 0 ? bits : ~bits) == lane) f += left > 0 ? 1u : ~0u;
    left += left > 0 ? -1 : 1;
  }
  return f;
}

using LxrRows = WarpRows<kLxrTile, kTileWarps>;

// The values of a tile in shared memory; every thread reads only what it has written.
struct SplitRows : WarpRows<kLxrTile, kSplitWarps> {
  Octet* octets;  // [kLxrTile / 8]

  PENSTOCK_DEVICE SplitRows(const TileView& tile, void* shared)
      : octets(static_cast<Octet*>(shared)) {
    PENSTOCK_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const uint32_t at = TileView::At(RowOf(i));
      const bool inside = at < tile.size;
      CopyAsync16(octets + i * kSplitThreads + ThreadX(), tile.values + (inside ? at : 0), inside);
    }
    CommitCopies();
    WaitCopies<0>();
  }
  PENSTOCK_DEVICE const Octet& octet(int i) const { return octets[i * kSplitThreads + ThreadX()]; }
};

// Counts the codes of the tile. Lane s of the first warp gets the count of code s; other lanes get
// an undefined value.
PENSTOCK_DEVICE uint32_t CountCodes(const SplitRows& rows, uint32_t size, uint32_t base,
                                    uint32_t* counters) {
  const int lane = ThreadX() % 32, warp = ThreadX() / 32;
  uint32_t* totals = counters + kLxrCounters;
  for (int i = ThreadX(); i < kLxrCounters; i += kSplitThreads) counters[i] = 0;
  SyncBlock();
  uint32_t* mine = counters + warp * kRansSymbols * 32 + lane;
  PENSTOCK_UNROLL
  for (int row = 0; row < SplitRows::kCount; ++row) {
    if (TileView::At(SplitRows::RowOf(row)) >= size) continue;
    const Octet octet = rows.octet(row);
    PENSTOCK_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = octet.quad(i).Codes(FourBytes(base));
      PENSTOCK_UNROLL
      for (int k = 0; k < 4; ++k) ++mine[(codes >> (8 * k) & 15u) * 32];
    }
  }
  SyncBlock();
  for (int s = warp; s < kRansSymbols; s += kSplitWarps) {
    uint32_t sum = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < kSplitWarps; ++w) sum += counters[(w * kRansSymbols + s) * 32 + lane];
    sum = WarpTotal(sum);
    if (lane == 0) totals[s] = sum;
  }
  SyncBlock();
  return lane < kRansSymbols ? totals[lane] : 0;
}

// Computes the split and the frequencies of every tile. Grid: tiles.
__global__ void __launch_bounds__(kSplitThreads)
    SplitLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* shared = reinterpret_cast<uint32_t*>(SharedMemory() + 2 * kLxrTile);
  const auto index = static_cast<uint32_t>(BlockX());
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const SplitRows rows(tile, SharedMemory());
  const TileSplit<SplitRows> split(rows, tile.size, shared);
  if (ThreadX() == 0) p.lossless.tiles[index] = TileOf(split, tile.size, 0);
  if (split.stored) return;
  const uint32_t count = CountCodes(rows, tile.size, split.base, shared + 256 + kSplitWarps);
  if (ThreadX() >= 32) return;
  const uint32_t frequency = NormalisedFrequency(count);
  if (ThreadX() < kRansSymbols) {
    LxrScratch(p.lossless, index).frequencies()[ThreadX()] = static_cast<uint8_t>(frequency);
  }
}

// A row of a tile, as a warp's rANS coder and as its memory has it: a lane codes values 64 * s +
// lane and 64 * s + 32 + lane, and loads or stores eight neighbouring ones. Two buffers in turn, so
// that one barrier per row is enough.
struct CodeRows {
  uint8_t* bytes;  // [2 * kTileRow] in shared memory

  PENSTOCK_DEVICE uint8_t* Row(uint32_t row) const { return bytes + row % 2 * kTileRow; }
  PENSTOCK_DEVICE uint8_t& At(uint32_t row, uint32_t step, uint32_t half) const {
    return Row(row)[step * 64 + half * 32 + static_cast<uint32_t>(ThreadX())];
  }
  PENSTOCK_DEVICE Words2& Octet(uint32_t row) const {
    return reinterpret_cast<Words2*>(Row(row))[ThreadX()];
  }
};
// The number of steps of 64 values in a row.
PENSTOCK_DEVICE uint32_t StepsOf(uint32_t size, uint32_t row) {
  const uint32_t left = size - row * kTileRow;
  return (left < kTileRow ? left : kTileRow) / 64;
}
constexpr int kLxrDecodeShared = kRansDecodeShared + 2 * kTileRow;
constexpr int kLxrEncodeShared = kRansSymbols * sizeof(RansSymbol) + 2 * kTileRow;

// Encodes every tile's codes to scratch. Grid: tiles, a warp each.
__global__ void __launch_bounds__(32)
    EncodeWordsKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* table = reinterpret_cast<RansSymbol*>(SharedMemory());
  const CodeRows codes{SharedMemory() + kRansSymbols * sizeof(RansSymbol)};
  const auto index = static_cast<uint32_t>(BlockX()), lane = static_cast<uint32_t>(ThreadX());
  KvTile& plan = p.lossless.tiles[index];
  if (plan.mode == LosslessMode::kStored) return;
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const LxrScratch scratch(p.lossless, index);
  const uint32_t frequency = lane < kRansSymbols ? scratch.frequencies()[lane] : 0;
  const uint32_t start = WarpPrefix(frequency) - frequency;
  if (lane < kRansSymbols) table[lane] = MakeRansSymbol(frequency, start);
  RansEncoder encoder;
  uint16_t* end = scratch.words_end();
  const uint32_t bases = FourBytes(plan.base);
  Octet next = tile.Load(tile.rows() - 1);
  for (uint32_t row = tile.rows(); row-- > 0;) {
    codes.Octet(row) = {{next.quad(0).Codes(bases), next.quad(1).Codes(bases)}};
    if (row > 0) next = tile.Load(row - 1);
    SyncWarp();  // the table, too
    for (uint32_t step = StepsOf(tile.size, row); step-- > 0;) {
      const RansSymbol symbols[2] = {table[codes.At(row, step, 0)], table[codes.At(row, step, 1)]};
      encoder.Step(symbols, end);
    }
  }
  scratch.states()[lane] = encoder.state[0];
  scratch.states()[lane + 32] = encoder.state[1];
  SyncWarp();  // all lanes have read the plan
  if (lane != 0) return;
  const auto words = static_cast<uint32_t>(scratch.words_end() - end);
  const uint32_t coded = kRansHeadBytes + 2 * words;
  if (16 + coded + tile.size + 3 * plan.escapes + 16 >= 16 + 2 * tile.size) {
    plan = StoredTile(tile.size);
  } else {
    plan.coded = coded;
    plan.bytes = CodedBytes(tile.size, coded, plan.escapes);
  }
}

// Copies the frequencies, states and words of a tile from scratch. By a block.
PENSTOCK_DEVICE void CopyCodes(const LxrScratch& scratch, uint32_t coded, std::byte* codes) {
  if (ThreadX() < static_cast<int>(kRansHeadBytes / 16)) {
    reinterpret_cast<Words4*>(codes)[ThreadX()] =
        reinterpret_cast<const Words4*>(scratch.start)[ThreadX()];
  }
  const uint32_t words = (coded - kRansHeadBytes) / 2;
  const uint16_t* from = scratch.words_end() - words;
  std::byte* to = codes + kRansHeadBytes;
  constexpr uint32_t kAhead = 4;
  for (uint32_t first = ThreadX(); first < words / 2; first += kAhead * kTileThreads) {
    uint16_t pair[kAhead][2];
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kTileThreads < words / 2 ? first + i * kTileThreads : first;
      pair[i][0] = from[2 * at], pair[i][1] = from[2 * at + 1];
    }
    PENSTOCK_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * kTileThreads;
      if (at >= words / 2) continue;
      reinterpret_cast<uint32_t*>(to)[at] = pair[i][0] | static_cast<uint32_t>(pair[i][1]) << 16;
    }
  }
  if (words % 2 != 0 && ThreadX() == 0)
    reinterpret_cast<uint16_t*>(to)[words - 1] = from[words - 1];
}

// Assembles every tile in the payload. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    WriteLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  if (!IsSmaller(p.lossless)) return;
  const auto index = static_cast<uint32_t>(BlockX());
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const KvTile plan = LoadTile(p.lossless, index);
  std::byte* head = p.lossless.payload + plan.offset;
  std::byte *codes = head + 16, *signs = codes + plan.coded;
  WriteHead(plan, head);
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile<kTileThreads>(reinterpret_cast<const std::byte*>(tile.values), codes,
                                  tile.size);
  }
  CopyCodes(LxrScratch(p.lossless, index), plan.coded, codes);
  constexpr int kAhead = 4;
  RowEscapes<LxrRows> escapes;
  for (int first = 0; first < LxrRows::kCount; first += kAhead) {
    Octet octets[kAhead];
    PENSTOCK_UNROLL
    for (int i = 0; i < kAhead; ++i) octets[i] = tile.Load(LxrRows::RowOf(first + i));
    PENSTOCK_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      escapes.Count(first + i, octets[i], FourBytes(plan.base));
      const uint32_t row = LxrRows::RowOf(first + i);
      if (row >= tile.rows()) break;
      const ByteRow to{signs + row * kTileRow, StepsOf(tile.size, row) * 8};
      to.Save({{octets[i].quad(0).signs, octets[i].quad(1).signs}});
    }
  }
  escapes.Write(tile, plan, signs + tile.size, head + plan.bytes,
                reinterpret_cast<uint32_t*>(SharedMemory()));
}

// Turns the symbols, signs and mantissas of a tile into values. Returns in all lanes whether the
// words are valid.
PENSTOCK_DEVICE bool DecodeWords(RansDecoder& decoder, const CodeRows& codes, std::byte* signs,
                                 uint32_t size, uint32_t base, uint16_t* values) {
  const auto lane = static_cast<uint32_t>(ThreadX());
  const uint32_t rows = (size + kTileRow - 1) / kTileRow;
  const auto signs_of = [&](uint32_t row) {
    return ByteRow{signs + row * kTileRow, StepsOf(size, row) * 8};
  };
  ByteRow::Loaded next = signs_of(0).Load();
  for (uint32_t row = 0; row < rows; ++row) {
    const ByteRow::Loaded loaded = next;
    if (row + 1 < rows) next = signs_of(row + 1).Load();
    const uint32_t steps = StepsOf(size, row);
    for (uint32_t step = 0; step < steps; ++step) {
      uint32_t symbol[2];
      if (!decoder.Step(symbol)) return false;
      codes.At(row, step, 0) = static_cast<uint8_t>(symbol[0]);
      codes.At(row, step, 1) = static_cast<uint8_t>(symbol[1]);
    }
    SyncWarp();
    const Words2 sign = signs_of(row).Align(loaded);
    if (lane >= steps * 8) continue;
    const Words2 code = codes.Octet(row);
    const Words2 first = Quad::Join(sign.word[0], code.word[0], FourBytes(base)).Values();
    const Words2 second = Quad::Join(sign.word[1], code.word[1], FourBytes(base)).Values();
    Store(values + row * kTileRow + lane * 8,
          Words4{{first.word[0], first.word[1], second.word[0], second.word[1]}});
  }
  return decoder.IsDone();
}

// Decodes every tile. Grid: tiles, a warp each.
__global__ void __launch_bounds__(32)
    DecodeLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* slots = reinterpret_cast<uint32_t*>(SharedMemory());
  const auto index = static_cast<uint32_t>(BlockX()), lane = static_cast<uint32_t>(ThreadX());
  const uint32_t size = TileAt(p.lossless, index, kLxrTile).size;
  const KvTile tile = LoadTile(p.lossless, index);
  if (!IsFramed(p.lossless)) return;
  std::byte* codes = p.lossless.payload + tile.offset + 16;
  auto* values = reinterpret_cast<uint16_t*>(p.lossless.values) + uint64_t{index} * kLxrTile;
  if (tile.mode == LosslessMode::kStored) {
    return CopyTile<32>(codes, reinterpret_cast<std::byte*>(values), size);
  }
  const uint32_t frequency = lane < kRansSymbols ? static_cast<uint32_t>(codes[lane]) : 0;
  if (!FillRansSlots(frequency, slots)) {
    if (lane == 0) Report(p.lossless.result, KvFault::kFrequencies, index);
    return;
  }
  const auto* states = reinterpret_cast<const uint32_t*>(codes + kRansSymbols);
  RansDecoder decoder{.slots = slots,
                      .ring = reinterpret_cast<uint16_t*>(slots + kRansSlots),
                      .source = reinterpret_cast<const uint16_t*>(codes + kRansHeadBytes),
                      .words = (tile.coded - kRansHeadBytes) / 2,
                      .state = {states[lane], states[lane + 32]}};
  std::byte* signs = codes + tile.coded;
  const CodeRows rows{SharedMemory() + kRansDecodeShared};
  decoder.Start();
  const bool known = decoder.HasStates();
  if (!known || !DecodeWords(decoder, rows, signs, size, tile.base, values)) {
    if (lane == 0) Report(p.lossless.result, known ? KvFault::kWords : KvFault::kState, index);
    return;
  }
  const TileEscapes escapes{.signs = signs, .size = size, .count = tile.escapes};
  if (!escapes.Patch(escapes.Load(lane), 0, size, values) && lane == 0) {
    Report(p.lossless.result, KvFault::kEscape, index);
  }
}

}  // namespace penstock::cuda
