#pragma once

// The lxr codec: exponents under rANS. A block splits a tile and counts its codes; a warp encodes
// them to scratch, from the last to the first; when all sizes are known, a block assembles the tile
// in the payload.

#include "kernels/cuda/device/kv_lx16.cuh"
#include "kernels/cuda/device/rans.cuh"

namespace penstock::cuda {

// One counter per symbol and thread, each in the bank of its lane.
constexpr int kLxrCounters = kTileWarps * kRansSymbols * 32;
constexpr int kLxrSizeShared = kTileSharedBytes + kLxrCounters * 4 + kRansSymbols * 4;

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

// Counts the codes of the tile. Lane s of the first warp gets the count of code s; other lanes get
// an undefined value.
PENSTOCK_DEVICE uint32_t CountCodes(const TileView& tile, uint32_t base, uint32_t* counters) {
  const int lane = ThreadX() % 32, warp = ThreadX() / 32;
  uint32_t* totals = counters + kLxrCounters;
  for (int i = ThreadX(); i < kLxrCounters; i += kTileThreads) counters[i] = 0;
  SyncBlock();
  uint32_t* mine = counters + warp * kRansSymbols * 32 + lane;
  for (uint32_t row = warp; row < tile.rows(); row += kTileWarps) {
    if (TileView::At(row) >= tile.size) continue;
    const Octet octet = tile.Load(row);
    PENSTOCK_UNROLL
    for (int i = 0; i < 8; ++i) ++mine[CodeOf(octet.bits(i), base) * 32];
  }
  SyncBlock();
  for (int s = warp; s < kRansSymbols; s += kTileWarps) {
    uint32_t sum = 0;
    PENSTOCK_UNROLL
    for (int w = 0; w < kTileWarps; ++w) sum += counters[(w * kRansSymbols + s) * 32 + lane];
    sum = WarpTotal(sum);
    if (lane == 0) totals[s] = sum;
  }
  SyncBlock();
  return lane < kRansSymbols ? totals[lane] : 0;
}

// Computes the split and the frequencies of every tile. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    SplitLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* shared = reinterpret_cast<uint32_t*>(SharedMemory());
  const auto index = static_cast<uint32_t>(BlockX());
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const TileSplit split(tile, shared);
  if (ThreadX() == 0) {
    p.lossless.tiles[index] = split.stored ? StoredTile(tile.size) : CodedTile(split, tile.size, 0);
  }
  if (split.stored) return;
  const uint32_t count = CountCodes(tile, split.base, shared + 256 + kTileWarps);
  if (ThreadX() >= 32) return;
  const uint32_t frequency = NormalisedFrequency(count);
  if (ThreadX() < kRansSymbols) {
    LxrScratch(p.lossless, index).frequencies()[ThreadX()] = static_cast<uint8_t>(frequency);
  }
}

// Encodes every tile's codes to scratch. Grid: tiles, a warp each.
__global__ void __launch_bounds__(32)
    EncodeWordsKernel(const __grid_constant__ LosslessTilesParams p) {
  auto* table = reinterpret_cast<RansSymbol*>(SharedMemory());
  const auto index = static_cast<uint32_t>(BlockX()), lane = static_cast<uint32_t>(ThreadX());
  KvTile& plan = p.lossless.tiles[index];
  if (plan.mode == LosslessMode::kStored) return;
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const LxrScratch scratch(p.lossless, index);
  const uint32_t frequency = lane < kRansSymbols ? scratch.frequencies()[lane] : 0;
  const uint32_t start = WarpPrefix(frequency) - frequency;
  if (lane < kRansSymbols) table[lane] = MakeRansSymbol(frequency, start);
  SyncWarp();
  RansEncoder encoder;
  uint16_t* end = scratch.words_end();
  const uint32_t base = plan.base;
  for (uint32_t at = tile.size; at > 0; at -= 64) {
    const Bf16* values = tile.values + at - 64 + lane;
    const RansSymbol symbols[2] = {table[CodeOf(values[0].bits, base)],
                                   table[CodeOf(values[32].bits, base)]};
    encoder.Step(symbols, end);
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

// Assembles every tile in the payload. Grid: tiles.
__global__ void __launch_bounds__(kTileThreads)
    WriteLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  if (!IsSmaller(p.lossless)) return;
  const auto index = static_cast<uint32_t>(BlockX());
  const TileView tile = TileAt(p.lossless, index, kLxrTile);
  const KvTile plan = p.lossless.tiles[index];
  std::byte* head = p.lossless.payload + plan.offset;
  std::byte *codes = head + 16, *signs = codes + plan.coded;
  WriteHead(plan, head);
  if (plan.mode == LosslessMode::kStored) {
    return CopyTile(reinterpret_cast<const std::byte*>(tile.values), codes, tile.size);
  }
  const LxrScratch scratch(p.lossless, index);
  if (ThreadX() < static_cast<int>(kRansHeadBytes / 16)) {
    reinterpret_cast<Words4*>(codes)[ThreadX()] =
        reinterpret_cast<const Words4*>(scratch.start)[ThreadX()];
  }
  const uint32_t words = (plan.coded - kRansHeadBytes) / 2;
  const uint16_t* from = scratch.words_end() - words;
  auto* to = reinterpret_cast<uint16_t*>(codes + kRansHeadBytes);
  for (uint32_t i = ThreadX(); i < words; i += kTileThreads) to[i] = from[i];
  for (uint32_t row = ThreadX() / 32; row < tile.rows(); row += kTileWarps) {
    const uint32_t at = TileView::At(row);
    if (at >= tile.size) continue;
    const Octet octet = tile.Load(row);
    auto* sign = reinterpret_cast<uint16_t*>(signs + at);  // aligned to 2 bytes only
    PENSTOCK_UNROLL
    for (int i = 0; i < 4; ++i) {
      sign[i] =
          static_cast<uint16_t>(SignOf(octet.bits(2 * i)) | SignOf(octet.bits(2 * i + 1)) << 8);
    }
  }
  WriteEscapes(tile, plan, signs + tile.size, head + plan.bytes,
               reinterpret_cast<uint32_t*>(SharedMemory()));
}

PENSTOCK_DEVICE uint16_t JoinOne(uint32_t sign, uint32_t code, uint32_t base) {
  const uint32_t exponent = code == 0 ? 0 : base + code;
  return static_cast<uint16_t>((sign & 0x80u) << 8 | exponent << 7 | (sign & 0x7fu));
}

// Turns the symbols, signs and mantissas of a tile into values. Returns in all lanes whether the
// words are valid.
PENSTOCK_DEVICE bool DecodeWords(RansDecoder& decoder, const std::byte* signs, uint32_t size,
                                 uint32_t base, uint16_t* values) {
  for (uint32_t at = ThreadX(); at < size; at += 64) {
    uint32_t symbol[2];
    if (!decoder.Step(symbol)) return false;
    PENSTOCK_UNROLL
    for (uint32_t h = 0; h < 2; ++h) {
      values[at + 32 * h] = JoinOne(static_cast<uint32_t>(signs[at + 32 * h]), symbol[h], base);
    }
  }
  return decoder.IsDone();
}

// Decodes every tile. Grid: tiles, a warp each.
__global__ void __launch_bounds__(32)
    DecodeLxrKernel(const __grid_constant__ LosslessTilesParams p) {
  if (!IsFramed(p.lossless)) return;
  auto* slots = reinterpret_cast<uint32_t*>(SharedMemory());
  const auto index = static_cast<uint32_t>(BlockX()), lane = static_cast<uint32_t>(ThreadX());
  const uint32_t size = TileAt(p.lossless, index, kLxrTile).size;
  const KvTile tile = p.lossless.tiles[index];
  const std::byte* codes = p.lossless.payload + tile.offset + 16;
  auto* values = reinterpret_cast<uint16_t*>(p.lossless.values) + uint64_t{index} * kLxrTile;
  if (tile.mode == LosslessMode::kStored) {
    for (uint32_t i = lane; i < size / 8; i += 32) {
      reinterpret_cast<Words4*>(values)[i] = reinterpret_cast<const Words4*>(codes)[i];
    }
    return;
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
  const std::byte* signs = codes + tile.coded;
  const bool known = decoder.HasStates();
  if (!known || !DecodeWords(decoder, signs, size, tile.base, values)) {
    if (lane == 0) Report(p.lossless.result, known ? KvFault::kWords : KvFault::kState, index);
    return;
  }
  PatchEscapes<1>(tile, signs + size, size, values, p.lossless.result,
                  reinterpret_cast<uint32_t*>(decoder.ring));
}

}  // namespace penstock::cuda
