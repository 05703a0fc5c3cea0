#include <array>
#include <vector>

#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/codec_parts.h"

// cgx follows CacheGen (Liu et al., "CacheGen: KV Cache Compression and Streaming for Fast Large
// Language Model Serving", SIGCOMM 2024, arXiv 2310.07240): layer-dependent quantisation steps and
// entropy coding. Differences: values are centred by calibrated channel means instead of anchor
// tokens, tables come from the calibration instead of each chunk, and the coder is interleaved rANS
// (Duda, arXiv 1311.2540; Giesen, arXiv 1402.3392) instead of arithmetic coding.
//
// The unprotected blocks of a run are cut into frames of a few blocks. A frame is a sequence of
// streams. A stream covers consecutive units (layer, head, plane) of the frame until it has
// kCgxStreamSymbols symbols. A unit is coded with one table, block by block, slot by slot,
// dimensions in order.
//   stream: {u32 bytes of words, u32 escapes}, 64 states of u32, words,
//           low bits (per unit and per 64 symbols, low_bits planes of 64 bits), escapes of i16
// The exact elements of MLA follow: [block][layer][head][plane][slot][rope_dim].

namespace penstock::kv_codec {
namespace {

constexpr size_t kStreamHead = 8 + sizeof(RansStates);
constexpr size_t kSlack = 64;
constexpr int kEscape = 15;  // the escape symbol of KvQuantOps

size_t SlotSymbols(const KvRun& run) { return static_cast<size_t>(QuantisedDims(run)); }

// One head of one plane of one layer.
struct Unit {
  uint16_t layer, head, plane;
};

// The units of a run in order, cut into streams.
std::vector<std::vector<Unit>> StreamsOf(const KvRun& run, size_t blocks) {
  std::vector<std::vector<Unit>> streams;
  size_t symbols = kCgxStreamSymbols;
  for (uint16_t layer = 0; layer < run.layers; ++layer) {
    for (uint16_t head = 0; head < run.kv_heads; ++head) {
      for (uint16_t plane = 0; plane < run.planes; ++plane) {
        if (symbols >= kCgxStreamSymbols) streams.emplace_back(), symbols = 0;
        streams.back().push_back({layer, head, plane});
        symbols += blocks * PieceSymbols(run);
      }
    }
  }
  return streams;
}

struct StreamScratch {
  explicit StreamScratch(const KvRun& run)
      : levels(kCgxStreamSymbols + CgxFrameBlocks(run) * PieceSymbols(run)),
        symbols(levels.size()),
        words(2 * levels.size() + kSlack) {}
  std::vector<int16_t> levels;
  std::vector<uint8_t> symbols;
  std::vector<uint8_t> words;
  std::vector<int16_t> escapes;
  std::vector<uint64_t> low;
};

// The parameters of one frame of a run.
struct Frame {
  const KvRun& run;
  const KvCalibration& calibration;
  int level;
  size_t first_block;  // index within the run
  size_t blocks;

  const KvCalibration::Table& table(const Unit& unit) const {
    return calibration.table(level, run.first_layer + unit.layer, unit.head, unit.plane);
  }
  const float* mean(const Unit& unit) const {
    return calibration.mean(run.first_layer + unit.layer, unit.head, unit.plane);
  }
  float step(const Unit& unit) const {
    return calibration.step(level, run.first_layer + unit.layer, unit.plane);
  }
  size_t unit_symbols() const { return blocks * PieceSymbols(run); }
  // Calls call(elements before, rows, symbols before) for each group of rows without gaps.
  template <class Call>
  void ForRows(const Unit& unit, const Call& call) const {
    for (size_t b = 0; b < blocks; ++b) {
      const size_t at = PieceOffset(run, first_block + b, unit.layer, unit.head, unit.plane);
      const size_t symbols = b * PieceSymbols(run);
      if (run.rope_dim == 0) {
        call(at, run.block_tokens, symbols);
        continue;
      }
      for (size_t slot = 0; slot < run.block_tokens; ++slot) {
        call(at + slot * run.head_dim, 1, symbols + slot * SlotSymbols(run));
      }
    }
  }
};

// Packs the low bits of 64 levels, one word for each bit. Bit 8 * j + k of a word belongs to level
// 8 * k + j, so that eight bytes are shifted at a time.
constexpr uint64_t kLowestBits = 0x0101010101010101;

void AppendLowBits(std::span<const int16_t> levels, int low_bits, std::vector<uint64_t>& low) {
  if (low_bits == 0) return;
  std::array<uint8_t, 64> bytes;
  std::array<uint64_t, 8> words;
  for (size_t i = 0; i < levels.size(); i += 64) {
    for (size_t j = 0; j < 64; ++j) bytes[j] = static_cast<uint8_t>(levels[i + j] & 0xff);
    std::memcpy(words.data(), bytes.data(), sizeof(words));
    for (int bit = 0; bit < low_bits; ++bit) {
      uint64_t plane = 0;
      for (size_t k = 0; k < 8; ++k) plane |= (words[k] >> bit & kLowestBits) << k;
      low.push_back(plane);
    }
  }
}

void AddLowBits(const uint8_t* low, int low_bits, std::span<int16_t> levels) {
  if (low_bits == 0) return;
  std::array<uint8_t, 64> bytes;
  for (size_t i = 0; i < levels.size(); i += 64) {
    std::array<uint64_t, 8> words{};
    for (int bit = 0; bit < low_bits; ++bit, low += 8) {
      const auto plane = LoadAs<uint64_t>(low);
      for (size_t k = 0; k < 8; ++k) words[k] |= (plane >> k & kLowestBits) << bit;
    }
    std::memcpy(bytes.data(), words.data(), sizeof(words));
    for (size_t j = 0; j < 64; ++j) levels[i + j] = static_cast<int16_t>(levels[i + j] | bytes[j]);
  }
}

// Calls call(i) for every escape among `symbols`, in order.
template <class Call>
void ForEscapes(std::span<const uint8_t> symbols, const Call& call) {
  const uint8_t* at = symbols.data();
  const uint8_t* const end = at + symbols.size();
  while (at != end) {
    const auto left = static_cast<size_t>(end - at);
    at = static_cast<const uint8_t*>(std::memchr(at, kEscape, left));
    if (at == nullptr) return;
    call(static_cast<size_t>(at - symbols.data()));
    ++at;
  }
}

// Computes the levels, symbols, escapes and low bits of a unit.
void QuantiseUnit(const Frame& frame, const Unit& unit, const Bf16* values, size_t at,
                  StreamScratch& scratch) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  const int dims = QuantisedDims(frame.run);
  frame.ForRows(unit, [&](size_t elements, size_t rows, size_t symbols) {
    ops.quantise(values + elements, frame.mean(unit), static_cast<int64_t>(rows), dims,
                 frame.step(unit), scratch.levels.data() + at + symbols);
  });
  const size_t count = frame.unit_symbols();
  const int low_bits = frame.table(unit).low_bits;
  const std::span levels = std::span(scratch.levels).subspan(at, count);
  uint8_t* symbols = scratch.symbols.data() + at;
  AppendLowBits(levels, low_bits, scratch.low);
  if (ops.to_symbols(levels.data(), static_cast<int64_t>(count), low_bits, symbols) == 0) return;
  ForEscapes({symbols, count}, [&](size_t i) { scratch.escapes.push_back(levels[i]); });
}

// Copies `items`, which may be empty, to `at`; returns the end of the copy.
template <class T>
uint8_t* Append(std::span<const T> items, uint8_t* at) {
  if (!items.empty()) std::memcpy(at, items.data(), items.size_bytes());
  return at + items.size_bytes();
}

// Encodes one stream. rANS is last in, first out, so the units are encoded from last to first and
// the decoder reads them in order.
bool EncodeStream(const Frame& frame, const std::vector<Unit>& units, const Bf16* values,
                  StreamScratch& scratch, PayloadWriter& writer) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  scratch.escapes.clear();
  scratch.low.clear();
  const size_t count = frame.unit_symbols();
  for (size_t u = 0; u < units.size(); ++u) {
    QuantiseUnit(frame, units[u], values, u * count, scratch);
  }
  RansStates states;
  std::fill(std::begin(states.lane), std::end(states.lane), kRansLow);
  uint8_t* const end = scratch.words.data() + scratch.words.size();
  uint8_t* words = end;
  for (size_t u = units.size(); u-- > 0;) {
    RansTable table;
    PENSTOCK_CHECK(MakeRansTable(frame.table(units[u]).frequencies, table));
    words = ops.rans_encode(scratch.symbols.data() + u * count, static_cast<int64_t>(count), table,
                            states, words);
  }
  const auto words_bytes = static_cast<size_t>(end - words);
  const size_t low_bytes = scratch.low.size() * sizeof(uint64_t);
  const size_t escape_bytes = scratch.escapes.size() * sizeof(int16_t);
  uint8_t* stream = writer.Take(kStreamHead + words_bytes + low_bytes + escape_bytes);
  if (stream == nullptr) return false;
  StoreAs(stream, static_cast<uint32_t>(words_bytes));
  StoreAs(stream + 4, static_cast<uint32_t>(scratch.escapes.size()));
  StoreAs(stream + 8, states);
  uint8_t* at = Append(std::span<const uint8_t>(words, end), stream + kStreamHead);
  at = Append(std::span<const uint64_t>(scratch.low), at);
  Append(std::span<const int16_t>(scratch.escapes), at);
  writer.Sum();
  return true;
}

// Decodes the symbols of a stream. The final states must equal the encoder's initial states, which
// detects damaged words.
absl::Status DecodeSymbols(const Frame& frame, const std::vector<Unit>& units,
                           const uint8_t* stream, size_t words_bytes, StreamScratch& scratch) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  auto states = LoadAs<RansStates>(stream + 8);
  for (const uint32_t state : states.lane) {
    if (state < kRansLow || state >= kRansLow << 16) {
      return DataLoss("KV codec cgx: rANS state {:#x} is out of range", state);
    }
  }
  const uint8_t* words = stream + kStreamHead;
  const uint8_t* const end = words + words_bytes;
  const auto count = static_cast<int64_t>(frame.unit_symbols());
  for (size_t u = 0; u < units.size() && words != nullptr; ++u) {
    RansTable table;
    PENSTOCK_CHECK(MakeRansTable(frame.table(units[u]).frequencies, table));
    words = ops.rans_decode(words, end, count, table, states,
                            scratch.symbols.data() + u * static_cast<size_t>(count));
  }
  const bool whole = words == end && std::all_of(std::begin(states.lane), std::end(states.lane),
                                                 [](uint32_t state) { return state == kRansLow; });
  return whole ? absl::OkStatus() : DataLoss("KV codec cgx: the words of a stream are damaged");
}

// Consumes escapes from the front of `escapes`; false when there are too few.
bool DequantiseUnit(const Frame& frame, const Unit& unit, size_t at, const uint8_t*& low,
                    std::span<const uint8_t>& escapes, StreamScratch& scratch, Bf16* values) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  const size_t count = frame.unit_symbols();
  const int low_bits = frame.table(unit).low_bits;
  const std::span levels = std::span(scratch.levels).subspan(at, count);
  const uint8_t* symbols = scratch.symbols.data() + at;
  const int64_t escaped =
      ops.from_symbols(symbols, static_cast<int64_t>(count), low_bits, levels.data());
  AddLowBits(low, low_bits, levels);
  low += count / 8 * static_cast<size_t>(low_bits);
  if (static_cast<size_t>(escaped) * 2 > escapes.size()) return false;
  if (escaped > 0) {
    ForEscapes({symbols, count}, [&](size_t i) {
      levels[i] = LoadAs<int16_t>(escapes.data());
      escapes = escapes.subspan(2);
    });
  }
  frame.ForRows(unit, [&](size_t elements, size_t rows, size_t symbols_before) {
    ops.dequantise(levels.data() + symbols_before, frame.mean(unit), static_cast<int64_t>(rows),
                   QuantisedDims(frame.run), frame.step(unit), values + elements);
  });
  return true;
}

absl::Status DecodeStream(const Frame& frame, const std::vector<Unit>& units, PayloadReader& reader,
                          StreamScratch& scratch, Bf16* values) {
  const uint8_t* head = reader.Take(kStreamHead);
  if (head == nullptr) return Truncated("cgx", "a stream's head");
  const size_t words_bytes = LoadAs<uint32_t>(head);
  const size_t escape_bytes = size_t{2} * LoadAs<uint32_t>(head + 4);
  size_t low_bytes = 0;
  for (const Unit& unit : units) {
    low_bytes += frame.unit_symbols() / 8 * frame.table(unit).low_bits;
  }
  const uint8_t* body = reader.Take(words_bytes + low_bytes + escape_bytes);
  if (body == nullptr) return Truncated("cgx", "a stream");
  RETURN_IF_ERROR(DecodeSymbols(frame, units, head, words_bytes, scratch));
  const uint8_t* low = body + words_bytes;
  std::span escapes(low + low_bytes, escape_bytes);
  for (size_t u = 0; u < units.size(); ++u) {
    if (!DequantiseUnit(frame, units[u], u * frame.unit_symbols(), low, escapes, scratch, values)) {
      return DataLoss("KV codec cgx: too few escapes");
    }
  }
  return escapes.empty() ? absl::OkStatus() : DataLoss("KV codec cgx: escapes are left over");
}

// Calls call(frame, units of a stream) until one call returns false.
template <class Call>
bool ForStreams(const KvRun& run, const KvCalibration& calibration, int level, const Call& call) {
  const size_t frame_blocks = CgxFrameBlocks(run);
  for (size_t first = 0; first < run.blocks; first += frame_blocks) {
    const Frame frame{.run = run,
                      .calibration = calibration,
                      .level = level,
                      .first_block = first,
                      .blocks = std::min<size_t>(frame_blocks, run.blocks - first)};
    for (const std::vector<Unit>& units : StreamsOf(run, frame.blocks)) {
      if (!call(frame, units)) return false;
    }
  }
  return true;
}

}  // namespace

bool EncodeCgx(const KvCodecSpec& spec, const KvRun& run, const KvCalibration& calibration,
               const Bf16* values, PayloadWriter& writer) {
  for (size_t i = 0; i < size_t{run.blocks} * run.layers; ++i) {
    if (!FitsQuantised(run, values + i * run.LayerElements())) return false;
  }
  StreamScratch scratch(run);
  const bool fits =
      ForStreams(run, calibration, spec.level, [&](const Frame& frame, const auto& units) {
        return EncodeStream(frame, units, values, scratch, writer);
      });
  if (!fits) return false;
  const size_t exact = run.rope_dim * sizeof(Bf16);
  for (size_t row = 0; exact > 0 && row < run.Elements() / run.head_dim; ++row) {
    uint8_t* target = writer.Take(exact);
    if (target == nullptr) return false;
    std::memcpy(target, values + row * run.head_dim + QuantisedDims(run), exact);
  }
  writer.Sum();
  return true;
}

absl::Status DecodeCgx(const KvCodecSpec& spec, const KvRun& run, const KvCalibration& calibration,
                       PayloadReader& reader, Bf16* values) {
  StreamScratch scratch(run);
  absl::Status status;
  ForStreams(run, calibration, spec.level, [&](const Frame& frame, const auto& units) {
    status = DecodeStream(frame, units, reader, scratch, values);
    return status.ok();
  });
  RETURN_IF_ERROR(status);
  const size_t exact = run.rope_dim * sizeof(Bf16);
  for (size_t row = 0; exact > 0 && row < run.Elements() / run.head_dim; ++row) {
    const uint8_t* source = reader.Take(exact);
    if (source == nullptr) return Truncated("cgx", "exact elements");
    std::memcpy(values + row * run.head_dim + QuantisedDims(run), source, exact);
  }
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
