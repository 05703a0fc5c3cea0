#include <array>
#include <vector>

#include "kernels/kv_codec.h"
#include "kvstore/codec/codec_parts.h"

namespace penstock::kv_codec {
namespace {

constexpr size_t kAlignment = 16;
// Encoders may overwrite this many bytes below the words that they write.
constexpr size_t kSlack = 64;

size_t Padding(size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

struct EscapeLists {
  std::array<uint16_t, kLxrTile / 8 + 64> positions;
  std::array<uint8_t, kLxrTile / 8 + 64> exponents;
  ExponentEscapes view(size_t max) {
    return {positions.data(), exponents.data(), static_cast<int32_t>(max)};
  }
};

// The start of the window of 15 exponents that contains the most values.
int BestBase(const Bf16* values, size_t size) {
  std::array<uint32_t, 256> counts{};
  for (size_t i = 0; i < size; ++i) ++counts[values[i].bits >> 7 & 0xff];
  uint32_t inside = 0;
  for (int e = 1; e <= 15; ++e) inside += counts[e];
  uint32_t best = inside;
  int base = 0;
  for (int b = 1; b <= kExponentBaseMax; ++b) {
    inside += counts[b + 15] - counts[b];
    if (inside > best) best = inside, base = b;
  }
  return base;
}

using SplitFunction = decltype(KvCodecOps::split_bytes);

// Exponent coding: bf16 exponents of KV cluster, so a 4-bit code replaces the 8-bit exponent, as in
// SplitZip (arXiv 2605.01708). Codes are a contiguous window of exponents instead of a codebook;
// values outside are escapes. Tries the window below the highest exponent first, then the best one.
// Negative when both have too many escapes.
int32_t SplitTile(const KvCodecOps& ops, SplitFunction split, const Bf16* values, size_t size,
                  uint8_t* signs, uint8_t* codes, EscapeLists& lists, int& base) {
  const auto elements = static_cast<int64_t>(size);
  base = std::max(ops.max_exponent(values, elements), 15) - 15;
  const int32_t few = split(values, elements, base, signs, codes, lists.view(size / 32));
  if (few >= 0) return few;
  base = BestBase(values, size);
  return split(values, elements, base, signs, codes, lists.view(size / 8));
}

bool StoreTile(const Bf16* values, size_t size, PayloadWriter& writer) {
  uint8_t* room = writer.Take(sizeof(LosslessHead) + size * sizeof(Bf16));
  if (room == nullptr) return false;
  StoreAs(room, LosslessHead{
                    .coded = 0, .escapes = 0, .base = 0, .mode = LosslessMode::kStored, .zero = 0});
  std::memcpy(room + sizeof(LosslessHead), values, size * sizeof(Bf16));
  writer.Sum();
  return true;
}

// Writes the escapes at `end`, where the tile's other parts end, and gives the unused rest of
// `room` back.
void FinishTile(uint8_t* start, uint8_t* end, size_t room, const LosslessHead& head,
                const EscapeLists& lists, PayloadWriter& writer) {
  StoreAs(start, head);
  std::memcpy(end, lists.positions.data(), size_t{2} * head.escapes);
  std::memcpy(end + size_t{2} * head.escapes, lists.exponents.data(), head.escapes);
  size_t used = static_cast<size_t>(end - start) + size_t{3} * head.escapes;
  const size_t padding = Padding(used);
  std::memset(start + used, 0, padding);
  writer.GiveBack(room - used - padding);
  writer.Sum();
}

// lx16: signs and mantissas are stored, exponent codes are packed in nibbles.
bool EncodeLx16Tile(const KvCodecOps& ops, const Bf16* values, size_t size, EscapeLists& lists,
                    PayloadWriter& writer) {
  const size_t fixed = sizeof(LosslessHead) + size / 2 + size;
  const size_t room = fixed + 3 * (size / 8) + kAlignment;
  uint8_t* start = writer.Take(room);
  if (start == nullptr) return StoreTile(values, size, writer);
  uint8_t* codes = start + sizeof(LosslessHead);
  int base = 0;
  const int32_t escapes =
      SplitTile(ops, ops.split_nibbles, values, size, codes + size / 2, codes, lists, base);
  if (escapes < 0) {
    writer.GiveBack(room);
    return StoreTile(values, size, writer);
  }
  const LosslessHead head{.coded = static_cast<uint32_t>(size / 2),
                          .escapes = static_cast<uint16_t>(escapes),
                          .base = static_cast<uint8_t>(base),
                          .mode = LosslessMode::kCoded,
                          .zero = 0};
  FinishTile(start, start + fixed, room, head, lists, writer);
  return true;
}

struct LxrScratch {
  std::array<uint8_t, kLxrTile> signs;
  std::array<uint8_t, kLxrTile> codes;
  std::array<uint8_t, 2 * kLxrTile + kSlack> words;
  std::array<uint8_t, kRansSymbols> frequencies;
  RansStates states;
};

// Entropy-codes the first `size` of scratch.codes with interleaved rANS (Duda, arXiv 1311.2540;
// Giesen, arXiv 1402.3392) into the end of the scratch. Returns the number of bytes.
size_t EncodeWords(const KvCodecOps& ops, size_t size, LxrScratch& scratch) {
  std::array<uint64_t, kRansSymbols> counts{};
  ops.count_symbols(scratch.codes.data(), static_cast<int64_t>(size), counts.data());
  NormaliseRansFrequencies(counts, scratch.frequencies);
  RansTable table;
  PENSTOCK_CHECK(MakeRansTable(scratch.frequencies, table));
  std::fill(std::begin(scratch.states.lane), std::end(scratch.states.lane), kRansLow);
  uint8_t* const end = scratch.words.data() + scratch.words.size();
  const uint8_t* words =
      ops.rans_encode(scratch.codes.data(), static_cast<int64_t>(size), table, scratch.states, end);
  return static_cast<size_t>(end - words);
}

// lxr: as lx16, but the exponent codes are entropy-coded, as in DFloat11 (arXiv 2504.11651) with
// rANS instead of Huffman codes.
bool EncodeLxrTile(const KvCodecOps& ops, const Bf16* values, size_t size, EscapeLists& lists,
                   LxrScratch& scratch, PayloadWriter& writer) {
  int base = 0;
  const int32_t escapes = SplitTile(ops, ops.split_bytes, values, size, scratch.signs.data(),
                                    scratch.codes.data(), lists, base);
  if (escapes < 0) return StoreTile(values, size, writer);
  const size_t words = EncodeWords(ops, size, scratch);
  const LosslessHead head{.coded = static_cast<uint32_t>(kRansHeadBytes + words),
                          .escapes = static_cast<uint16_t>(escapes),
                          .base = static_cast<uint8_t>(base),
                          .mode = LosslessMode::kCoded,
                          .zero = 0};
  const size_t used = sizeof(head) + head.coded + size + size_t{3} * head.escapes;
  if (used + kAlignment >= sizeof(head) + size * sizeof(Bf16)) {
    return StoreTile(values, size, writer);
  }
  uint8_t* start = writer.Take(used + Padding(used));
  if (start == nullptr) return false;
  uint8_t* at = start + sizeof(head);
  const auto append = [&at](const void* bytes, size_t count) {
    std::memcpy(at, bytes, count);
    at += count;
  };
  append(scratch.frequencies.data(), kRansSymbols);
  append(&scratch.states, sizeof(scratch.states));
  append(scratch.words.data() + scratch.words.size() - words, words);
  append(scratch.signs.data(), size);
  FinishTile(start, at, used + Padding(used), head, lists, writer);
  return true;
}

// The parts of a tile within the payload.
struct TileView {
  LosslessHead head;
  const uint8_t* codes = nullptr;  // for a stored tile: its elements
  const uint8_t* signs = nullptr;
  const uint8_t* positions = nullptr;
  const uint8_t* exponents = nullptr;
};

absl::Status ReadTile(std::string_view codec, PayloadReader& reader, size_t size, TileView& tile) {
  const uint8_t* head = reader.Take(sizeof(LosslessHead));
  if (head == nullptr) return Truncated(codec, "a tile's head");
  tile.head = LoadAs<LosslessHead>(head);
  if (tile.head.mode > LosslessMode::kStored || tile.head.base > kExponentBaseMax ||
      tile.head.escapes > size / 8 || tile.head.coded > 4 * kLxrTile || tile.head.zero != 0) {
    return DataLoss("KV codec {}: a tile with mode {}, base {}, {} escapes, {} bytes of codes",
                    std::string(codec), static_cast<int>(tile.head.mode), tile.head.base,
                    tile.head.escapes, tile.head.coded);
  }
  if (tile.head.mode == LosslessMode::kStored) {
    tile.codes = reader.Take(size * sizeof(Bf16));
    return tile.codes == nullptr ? Truncated(codec, "a stored tile") : absl::OkStatus();
  }
  const size_t bytes = tile.head.coded + size + size_t{3} * tile.head.escapes;
  tile.codes = reader.Take(bytes + Padding(bytes));
  if (tile.codes == nullptr) return Truncated(codec, "a tile");
  tile.signs = tile.codes + tile.head.coded;
  tile.positions = tile.signs + size;
  tile.exponents = tile.positions + size_t{2} * tile.head.escapes;
  return absl::OkStatus();
}

absl::Status PatchEscapes(std::string_view codec, const TileView& tile, size_t size, Bf16* values) {
  for (size_t i = 0; i < tile.head.escapes; ++i) {
    const auto position = LoadAs<uint16_t>(tile.positions + 2 * i);
    if (position >= size) {
      return DataLoss("KV codec {}: an escape at {} of a tile of {}", std::string(codec), position,
                      size);
    }
    const int exponent = tile.exponents[i];
    values[position].bits = static_cast<uint16_t>((values[position].bits & 0x807f) | exponent << 7);
  }
  return absl::OkStatus();
}

absl::Status DecodeWords(const KvCodecOps& ops, const TileView& tile, size_t size,
                         uint8_t* symbols) {
  if (tile.head.coded < kRansHeadBytes)
    return DataLoss("KV codec lxr: {} bytes of codes", tile.head.coded);
  RansTable table;
  if (!MakeRansTable(std::span<const uint8_t, kRansSymbols>(tile.codes, kRansSymbols), table)) {
    return DataLoss("KV codec lxr: each frequency must be at least 1, and their sum 256");
  }
  RansStates states;
  std::memcpy(&states, tile.codes + kRansSymbols, sizeof(states));
  for (const uint32_t state : states.lane) {
    if (state < kRansLow || state >= kRansLow << 16) {
      return DataLoss("KV codec lxr: rANS state {:#x} is out of range", state);
    }
  }
  const uint8_t* end = tile.codes + tile.head.coded;
  const uint8_t* read = ops.rans_decode(tile.codes + kRansHeadBytes, end,
                                        static_cast<int64_t>(size), table, states, symbols);
  const bool whole = read == end && std::all_of(std::begin(states.lane), std::end(states.lane),
                                                [](uint32_t state) { return state == kRansLow; });
  return whole ? absl::OkStatus() : DataLoss("KV codec lxr: the words of a tile are damaged");
}

}  // namespace

bool EncodeLx16(const Bf16* values, size_t elements, PayloadWriter& writer) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  EscapeLists lists;
  for (size_t at = 0; at < elements; at += kLx16Tile) {
    const size_t size = std::min<size_t>(kLx16Tile, elements - at);
    if (!EncodeLx16Tile(ops, values + at, size, lists, writer)) return false;
  }
  return true;
}

bool EncodeLxr(const Bf16* values, size_t elements, PayloadWriter& writer) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  EscapeLists lists;
  LxrScratch scratch;
  for (size_t at = 0; at < elements; at += kLxrTile) {
    const size_t size = std::min<size_t>(kLxrTile, elements - at);
    if (!EncodeLxrTile(ops, values + at, size, lists, scratch, writer)) return false;
  }
  return true;
}

absl::Status DecodeLx16(PayloadReader& reader, size_t elements, Bf16* values) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  for (size_t at = 0; at < elements; at += kLx16Tile, values += kLx16Tile) {
    const size_t size = std::min<size_t>(kLx16Tile, elements - at);
    TileView tile;
    RETURN_IF_ERROR(ReadTile("lx16", reader, size, tile));
    if (tile.head.mode == LosslessMode::kStored) {
      std::memcpy(values, tile.codes, size * sizeof(Bf16));
      continue;
    }
    if (tile.head.coded != size / 2) {
      return DataLoss("KV codec lx16: {} bytes of codes for {} elements", tile.head.coded, size);
    }
    ops.join_nibbles(tile.signs, tile.codes, static_cast<int64_t>(size), tile.head.base, values);
    RETURN_IF_ERROR(PatchEscapes("lx16", tile, size, values));
  }
  return absl::OkStatus();
}

absl::Status DecodeLxr(PayloadReader& reader, size_t elements, Bf16* values) {
  const KvCodecOps& ops = ActiveKvCodecOps();
  std::array<uint8_t, kLxrTile> symbols;
  for (size_t at = 0; at < elements; at += kLxrTile, values += kLxrTile) {
    const size_t size = std::min<size_t>(kLxrTile, elements - at);
    TileView tile;
    RETURN_IF_ERROR(ReadTile("lxr", reader, size, tile));
    if (tile.head.mode == LosslessMode::kStored) {
      std::memcpy(values, tile.codes, size * sizeof(Bf16));
      continue;
    }
    RETURN_IF_ERROR(DecodeWords(ops, tile, size, symbols.data()));
    ops.join_bytes(tile.signs, symbols.data(), static_cast<int64_t>(size), tile.head.base, values);
    RETURN_IF_ERROR(PatchEscapes("lxr", tile, size, values));
  }
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
