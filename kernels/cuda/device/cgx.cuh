#pragma once

// The cgx codec: levels around calibrated means, whose high parts are rANS-coded with calibrated
// tables. One warp codes one stream; kvstore/codec/codec_cgx.cc divides a payload into streams.
// Every kernel computes the levels again instead of storing them.

#include "kernels/cuda/device/lossless_tile.cuh"
#include "kernels/cuda/device/quantise.cuh"
#include "kernels/cuda/device/rans.cuh"

namespace penstock::cuda {

constexpr uint32_t kCgxEscape = 15;
constexpr uint32_t kCgxHeadBytes = 8 + sizeof(RansStates);
constexpr int kCgxEncodeShared = kRansSymbols * sizeof(RansSymbol);

// The elements of one unit (one head of one plane of one layer) in the blocks of a stream.
struct CgxSource {
  const CgxUnit* unit;
  const float* mean;
  Bf16* values;  // the unit in the stream's first block
  uint32_t piece, dims, stride;
  uint64_t block_stride;
  float step, inverse;

  PENSTOCK_DEVICE CgxSource(const CgxParams& p, const CgxStream& stream, uint32_t index)
      : unit(p.units + p.first_unit + index),
        mean(p.means + uint64_t{p.first_unit + index} * p.dims),
        values(p.values + stream.first_block * BlockElements(p) +
               uint64_t{index} * p.slots * (p.dims + p.exact)),
        piece(p.slots * p.dims),
        dims(p.dims),
        stride(p.dims + p.exact),
        block_stride(BlockElements(p)),
        step(unit->step),
        inverse(Divide(1.0f, unit->step)) {}

  static PENSTOCK_DEVICE uint64_t BlockElements(const CgxParams& p) {
    return uint64_t{p.units_of_block} * p.slots * (p.dims + p.exact);
  }
  PENSTOCK_DEVICE Bf16& ValueOf(uint32_t symbol) const {
    const uint32_t within = symbol % piece;
    return values[symbol / piece * block_stride + within / dims * stride + within % dims];
  }
  PENSTOCK_DEVICE float MeanOf(uint32_t symbol) const { return mean[symbol % dims]; }
  PENSTOCK_DEVICE int32_t LevelOf(uint32_t symbol) const {
    float level = Multiply(Add(WidenBf16(ValueOf(symbol).bits), -MeanOf(symbol)), inverse);
    level = level < 32767.0f ? level : 32767.0f;
    level = level > -32767.0f ? level : -32767.0f;
    return static_cast<int16_t>(RoundedBits(level));
  }
  PENSTOCK_DEVICE uint32_t SymbolOf(int32_t level) const {
    const auto high = static_cast<uint32_t>((level >> unit->low_bits) + 7);
    return high < kCgxEscape ? high : kCgxEscape;
  }
  PENSTOCK_DEVICE uint32_t Frequency() const {
    return ThreadX() < kRansSymbols ? unit->frequencies[ThreadX()] : 0u;
  }
};

// Scratch of one stream: the states, and the words, which end at the end of the scratch.
struct CgxScratch {
  std::byte* start;
  uint16_t* end;

  PENSTOCK_DEVICE CgxScratch(const CgxParams& p, const CgxStream& stream, uint32_t index)
      : start(p.words + uint64_t{stream.symbols_before} * 2 + index * sizeof(RansStates)),
        end(reinterpret_cast<uint16_t*>(start + sizeof(RansStates)) + stream.symbols) {}
  PENSTOCK_DEVICE uint32_t* states() const { return reinterpret_cast<uint32_t*>(start); }
};

// Entropy-codes every stream into scratch. Grid: streams, a warp each.
__global__ void __launch_bounds__(32) EncodeCgxWordsKernel(const __grid_constant__ CgxParams p) {
  auto* table = reinterpret_cast<RansSymbol*>(SharedMemory());
  const auto lane = static_cast<uint32_t>(ThreadX());
  CgxStream& stream = p.streams[BlockX()];
  const CgxScratch scratch(p, stream, static_cast<uint32_t>(BlockX()));
  const uint32_t count = stream.symbols / stream.units;
  RansEncoder encoder;
  uint16_t* end = scratch.end;
  uint32_t escapes = 0, max = 0;
  for (uint32_t u = stream.units; u-- > 0;) {
    const CgxSource source(p, stream, stream.first_unit + u);
    const uint32_t start = WarpPrefix(source.Frequency()) - source.Frequency();
    SyncWarp();  // all lanes have finished with the previous table
    if (lane < kRansSymbols) table[lane] = MakeRansSymbol(source.Frequency(), start);
    SyncWarp();
    for (uint32_t at = count; at > 0; at -= 64) {
      RansSymbol symbols[2];
      PENSTOCK_UNROLL
      for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t index = at - 64 + lane + 32 * h;
        const uint32_t symbol = source.SymbolOf(source.LevelOf(index));
        const uint32_t magnitude = source.ValueOf(index).bits & 0x7fffu;
        escapes += symbol == kCgxEscape ? 1 : 0;
        max = magnitude > max ? magnitude : max;
        symbols[h] = table[symbol];
      }
      encoder.Step(symbols, end);
    }
  }
  scratch.states()[lane] = encoder.state[0];
  scratch.states()[lane + 32] = encoder.state[1];
  escapes = WarpTotal(escapes);
  if (WarpMost(max) >> 7 >= kQuantisedExponentMax && lane == 0) {
    Report(p.result, KvFault::kValues, static_cast<uint32_t>(BlockX()));
  }
  if (lane != 0) return;
  stream.words = static_cast<uint32_t>(scratch.end - end);
  stream.escapes = escapes;
  stream.bytes = kCgxHeadBytes + 2 * stream.words + stream.low_bytes + 2 * escapes;
}

// Computes the offset of every stream, and whether the coded payload is smaller than the raw bytes.
// One block.
__global__ void __launch_bounds__(kTileThreads)
    PlaceCgxKernel(const __grid_constant__ CgxParams p) {
  auto* board = reinterpret_cast<uint32_t*>(SharedMemory());
  uint32_t before = p.first_byte;
  for (uint32_t first = 0; first < p.stream_count; first += kTileThreads) {
    const uint32_t index = first + ThreadX();
    uint32_t total = 0;
    const uint32_t bytes = index < p.stream_count ? p.streams[index].bytes : 0;
    const uint32_t offset = before + BlockBefore<kTileWarps>(bytes, board, total);
    if (index < p.stream_count) p.streams[index].offset = offset;
    before += total;
  }
  if (ThreadX() != 0) return;
  p.result->streams_end = before;
  p.result->coded_bytes = before + p.behind_bytes;
  p.result->framed = before + p.behind_bytes < p.raw_bytes ? 1 : 0;
}

PENSTOCK_DEVICE void StoreWord(std::byte* to, uint32_t word) {
  reinterpret_cast<uint16_t*>(to)[0] = static_cast<uint16_t>(word);
  reinterpret_cast<uint16_t*>(to)[1] = static_cast<uint16_t>(word >> 16);
}
PENSTOCK_DEVICE uint32_t LoadWord(const std::byte* from) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  return halves[0] | static_cast<uint32_t>(halves[1]) << 16;
}

// Writes the low bits of the 64 levels from symbol `at` on, one plane of 64 bits per bit: bit 8 * j
// + k of a plane belongs to level 8 * k + j.
PENSTOCK_DEVICE void WriteLowBits(const CgxSource& source, uint32_t at, std::byte* low) {
  PENSTOCK_UNROLL
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t bit = ThreadX() + 32 * h;
    const auto level = static_cast<uint32_t>(source.LevelOf(at + bit % 8 * 8 + bit / 8));
    for (uint32_t b = 0; b < source.unit->low_bits; ++b) {
      const uint32_t half = Ballot((level >> b & 1u) != 0);
      if (ThreadX() == 0) StoreWord(low + b * 8 + h * 4, half);
    }
  }
}
PENSTOCK_DEVICE uint32_t LoadLowBits(const std::byte* low, uint32_t low_bits, uint32_t level) {
  uint32_t bits = 0;
  for (uint32_t b = 0; b < low_bits; ++b) {
    bits |= (static_cast<uint32_t>(low[b * 8 + level % 8]) >> (level / 8) & 1u) << b;
  }
  return bits;
}

// Writes every stream to its place in the payload. Grid: streams, a warp each.
__global__ void __launch_bounds__(32) WriteCgxKernel(const __grid_constant__ CgxParams p) {
  if (p.result->framed != 1) return;
  const auto lane = static_cast<uint32_t>(ThreadX());
  const CgxStream stream = p.streams[BlockX()];
  const CgxScratch scratch(p, stream, static_cast<uint32_t>(BlockX()));
  std::byte* to = p.payload + stream.offset;
  if (lane == 0) {
    StoreWord(to, 2 * stream.words);
    StoreWord(to + 4, stream.escapes);
  }
  for (uint32_t i = lane; i < 64; i += 32) StoreWord(to + 8 + 4 * i, scratch.states()[i]);
  to += kCgxHeadBytes;
  for (uint32_t i = lane; i < stream.words; i += 32) {
    reinterpret_cast<uint16_t*>(to)[i] = *(scratch.end - stream.words + i);
  }
  std::byte* low = to + 2 * stream.words;
  auto* escapes = reinterpret_cast<uint16_t*>(low + stream.low_bytes);
  const uint32_t count = stream.symbols / stream.units;
  for (uint32_t u = 0; u < stream.units; ++u) {
    const CgxSource source(p, stream, stream.first_unit + u);
    for (uint32_t at = 0; at < count; at += 64, low += 8 * source.unit->low_bits) {
      WriteLowBits(source, at, low);
      PENSTOCK_UNROLL
      for (uint32_t h = 0; h < 2; ++h) {
        const int32_t level = source.LevelOf(at + lane + 32 * h);
        const bool escape = source.SymbolOf(level) == kCgxEscape;
        const uint32_t ballot = Ballot(escape);
        if (escape) escapes[RankIn(ballot)] = static_cast<uint16_t>(level);
        escapes += CountBits(ballot);
      }
    }
  }
}

// Finds every stream of an untrusted payload. One thread.
__global__ void __launch_bounds__(32) FindCgxKernel(const __grid_constant__ CgxParams p) {
  if (ThreadX() != 0) return;
  uint64_t at = p.first_byte;
  for (uint32_t i = 0; i < p.stream_count; ++i) {
    CgxStream& stream = p.streams[i];
    if (at + kCgxHeadBytes > p.payload_bytes) return Report(p.result, KvFault::kTruncated, i);
    const uint32_t words_bytes = LoadWord(p.payload + at);
    stream.escapes = LoadWord(p.payload + at + 4);
    stream.offset = static_cast<uint32_t>(at);
    stream.words = words_bytes / 2;
    at += uint64_t{kCgxHeadBytes} + words_bytes + stream.low_bytes + uint64_t{2} * stream.escapes;
    if (at > p.payload_bytes) return Report(p.result, KvFault::kTruncated, i);
    if (words_bytes % 2 != 0) return Report(p.result, KvFault::kWords, i);
  }
  if (at + p.behind_bytes != p.payload_bytes) {
    const bool more = at + p.behind_bytes < p.payload_bytes;
    return Report(p.result, more ? KvFault::kLeftOver : KvFault::kTruncated, p.stream_count);
  }
  p.result->streams_end = static_cast<uint32_t>(at);
  p.result->framed = 1;
}

// Reads the escapes of a stream, in the order of its symbols.
struct CgxEscapes {
  const std::byte* next;
  uint32_t left;

  // Sets the level of this lane's symbol if it is an escape. Returns false in all lanes if the
  // stream has too few escapes.
  PENSTOCK_DEVICE bool Take(bool escape, int32_t& level) {
    const uint32_t ballot = Ballot(escape), count = CountBits(ballot);
    if (count > left) return false;
    if (escape) level = reinterpret_cast<const int16_t*>(next)[RankIn(ballot)];
    next += 2 * count;
    left -= count;
    return true;
  }
};

PENSTOCK_DEVICE KvFault DecodeCgxUnit(const CgxSource& source, uint32_t count, RansDecoder& decoder,
                                      const std::byte*& low, CgxEscapes& escapes) {
  const uint32_t low_bits = source.unit->low_bits;
  for (uint32_t at = ThreadX(); at < count; at += 64, low += 8 * low_bits) {
    uint32_t symbol[2];
    if (!decoder.Step(symbol)) return KvFault::kWords;
    PENSTOCK_UNROLL
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t bits = LoadLowBits(low, low_bits, ThreadX() + 32 * h);
      int32_t level = (static_cast<int32_t>(symbol[h]) - 7) * (1 << low_bits);
      level = static_cast<int16_t>(static_cast<uint32_t>(level) | bits);
      if (!escapes.Take(symbol[h] == kCgxEscape, level)) return KvFault::kEscapes;
      const float value = Multiply(static_cast<float>(level), source.step);
      source.ValueOf(at + 32 * h).bits = RoundBf16(Add(value, source.MeanOf(at + 32 * h)));
    }
  }
  return KvFault::kNone;
}

// Decodes every stream. Grid: streams, a warp each.
__global__ void __launch_bounds__(32) DecodeCgxKernel(const __grid_constant__ CgxParams p) {
  if (p.result->framed != 1) return;
  auto* slots = reinterpret_cast<uint32_t*>(SharedMemory());
  const auto lane = static_cast<uint32_t>(ThreadX());
  const CgxStream stream = p.streams[BlockX()];
  const std::byte* from = p.payload + stream.offset;
  RansDecoder decoder{.slots = slots,
                      .ring = reinterpret_cast<uint16_t*>(slots + kRansSlots),
                      .source = reinterpret_cast<const uint16_t*>(from + kCgxHeadBytes),
                      .words = stream.words,
                      .state = {LoadWord(from + 8 + 4 * lane), LoadWord(from + 136 + 4 * lane)}};
  const std::byte* low = from + kCgxHeadBytes + 2 * stream.words;
  CgxEscapes escapes{.next = low + stream.low_bytes, .left = stream.escapes};
  decoder.Start();
  KvFault fault = decoder.HasStates() ? KvFault::kNone : KvFault::kState;
  for (uint32_t u = 0; u < stream.units && fault == KvFault::kNone; ++u) {
    const CgxSource source(p, stream, stream.first_unit + u);
    SyncWarp();  // all lanes have finished with the previous table
    FillRansSlots(source.Frequency(), slots);
    fault = DecodeCgxUnit(source, stream.symbols / stream.units, decoder, low, escapes);
  }
  if (fault == KvFault::kNone && !decoder.IsDone()) fault = KvFault::kWords;
  if (fault == KvFault::kNone && escapes.left != 0) fault = KvFault::kEscapes;
  if (fault != KvFault::kNone && lane == 0)
    Report(p.result, fault, static_cast<uint32_t>(BlockX()));
}

// Copies the exact elements. Grid: slots of all units and blocks, a warp each.
constexpr int kCgxExactWarps = 8;
template <bool kEncode>
__global__ void __launch_bounds__(kCgxExactWarps * 32)
    CgxExactKernel(const __grid_constant__ CgxParams p) {
  const uint64_t row = static_cast<uint64_t>(BlockX()) * kCgxExactWarps + ThreadX() / 32;
  if (row >= uint64_t{p.blocks} * p.units_of_block * p.slots) return;
  Bf16* values = p.values + row * (p.dims + p.exact) + p.dims;
  const bool framed = p.result->framed == 1;
  auto* exact =
      reinterpret_cast<uint16_t*>(p.payload + (framed ? p.result->streams_end : 0)) + row * p.exact;
  for (uint32_t i = ThreadX() % 32; i < p.exact; i += 32) {
    if (kEncode && ExponentOf(values[i].bits) >= kQuantisedExponentMax) {
      Report(p.result, KvFault::kValues, p.stream_count);
    }
    if (!framed) continue;
    if (kEncode) {
      exact[i] = values[i].bits;
    } else {
      values[i].bits = exact[i];
    }
  }
}

}  // namespace penstock::cuda
