#include <array>
#include <cmath>
#include <vector>

#include "kvstore/codec/codec_parts.h"

// 2-bit quantisation as in KIVI (Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for
// KV Cache", ICML 2024, arXiv 2402.02750): keys are quantised per channel, values per token, each
// group with a scale and a minimum. Differences: scales and minima are themselves quantised to 8
// bits, and the recent window is kept in 8 bits instead of 16.
//
// For each block, layer and head, a group of keys is one channel over the block's slots; a group of
// values (or latents) is 32 channels of one slot. A piece (plane) is
//   {bf16 scale_unit, bf16 minimum_unit}, u8 scale per group, i8 minimum per group, codes
// Codes of keys are [slot / 4][dim], with slot % 4 selecting the bits; codes of values are
// [slot][dims / 4], with the quarter of the row selecting the bits. The exact elements
// [slot][rope_dim] follow. Groups of keys are indexed by dim; groups of values are [slot][dims /
// 32].

namespace penstock::kv_codec {
namespace {

constexpr size_t kValueGroup = 32;
constexpr float kScaleMax = 255.0f;
constexpr float kMinimumMax = 127.0f;

struct Piece {
  size_t slots, dims, exact, stride;
  bool keys;
  size_t groups() const { return keys ? dims : slots * (dims / kValueGroup); }
  size_t code_bytes() const { return slots * dims / 4; }
  size_t bytes() const { return 4 + 2 * groups() + code_bytes() + slots * exact * sizeof(Bf16); }
  size_t GroupOf(size_t slot, size_t dim) const {
    return keys ? dim : slot * (dims / kValueGroup) + dim / kValueGroup;
  }
};

Piece PieceOf(const KvRun& run, size_t plane) {
  return {.slots = run.block_tokens,
          .dims = static_cast<size_t>(QuantisedDims(run)),
          .exact = run.rope_dim,
          .stride = run.head_dim,
          .keys = run.planes == 2 && plane == 0};
}

// The smallest bf16 that is not below `value`, which is positive.
Bf16 RoundedUp(float value) {
  const Bf16 nearest = ToBf16(value);
  return ToFloat(nearest) < value ? Bf16{static_cast<uint16_t>(nearest.bits + 1)} : nearest;
}

struct Groups {
  std::vector<float> low, high;  // first the range of the values; after encoding, minimum and scale
};

Groups RangesOf(const Piece& piece, const Bf16* values) {
  Groups groups{std::vector<float>(piece.groups(), INFINITY),
                std::vector<float>(piece.groups(), -INFINITY)};
  for (size_t slot = 0; slot < piece.slots; ++slot) {
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const float value = ToFloat(values[slot * piece.stride + dim]);
      const size_t group = piece.GroupOf(slot, dim);
      groups.low[group] = std::min(groups.low[group], value);
      groups.high[group] = std::max(groups.high[group], value);
    }
  }
  return groups;
}

// The minimum and scale of every group, as the decoder sees them.
Groups DecodedGroups(const Piece& piece, const uint8_t* bytes) {
  const float scale_unit = ToFloat(LoadAs<Bf16>(bytes)) / kScaleMax;
  const float minimum_unit = ToFloat(LoadAs<Bf16>(bytes + 2)) / kMinimumMax;
  Groups decoded{std::vector<float>(piece.groups()), std::vector<float>(piece.groups())};
  for (size_t g = 0; g < piece.groups(); ++g) {
    decoded.high[g] = static_cast<float>(bytes[4 + g]) * scale_unit;
    const auto minimum = static_cast<int8_t>(bytes[4 + piece.groups() + g]);
    decoded.low[g] = static_cast<float>(minimum) * minimum_unit;
  }
  return decoded;
}

// Rounds minima down and scales up, so that every value stays within its group's four levels.
void EncodeGroups(const Piece& piece, const Groups& ranges, uint8_t* bytes) {
  float magnitude = 0;
  for (const float low : ranges.low) magnitude = std::max(magnitude, std::fabs(low));
  const Bf16 minimum_top = RoundedUp(magnitude);
  const float minimum_unit = ToFloat(minimum_top) / kMinimumMax;
  std::vector<float> scales(piece.groups());
  float widest = 0;
  for (size_t g = 0; g < piece.groups(); ++g) {
    const float steps = minimum_unit == 0 ? 0 : std::floor(ranges.low[g] / minimum_unit);
    const float clamped = std::clamp(steps, -kMinimumMax, kMinimumMax);
    bytes[4 + piece.groups() + g] = static_cast<uint8_t>(static_cast<int8_t>(clamped));
    scales[g] = std::max(0.0f, (ranges.high[g] - clamped * minimum_unit) / 3);
    widest = std::max(widest, scales[g]);
  }
  const Bf16 scale_top = RoundedUp(widest);
  const float scale_unit = ToFloat(scale_top) / kScaleMax;
  for (size_t g = 0; g < piece.groups(); ++g) {
    const float steps = scale_unit == 0 ? 0 : std::ceil(scales[g] / scale_unit);
    bytes[4 + g] = static_cast<uint8_t>(std::clamp(steps, 0.0f, kScaleMax));
  }
  StoreAs(bytes, scale_top);
  StoreAs(bytes + 2, minimum_top);
}

struct CodePlace {
  size_t byte;
  int shift;
};

CodePlace PlaceOf(const Piece& piece, size_t slot, size_t dim) {
  if (piece.keys) return {slot / 4 * piece.dims + dim, static_cast<int>(slot % 4) * 2};
  const size_t quarter = piece.dims / 4;
  return {slot * quarter + dim % quarter, static_cast<int>(dim / quarter) * 2};
}

void EncodePiece(const Piece& piece, const Bf16* values, uint8_t* bytes) {
  EncodeGroups(piece, RangesOf(piece, values), bytes);
  const Groups decoded = DecodedGroups(piece, bytes);
  uint8_t* codes = bytes + 4 + 2 * piece.groups();
  std::memset(codes, 0, piece.code_bytes());
  for (size_t slot = 0; slot < piece.slots; ++slot) {
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const size_t group = piece.GroupOf(slot, dim);
      const float scale = decoded.high[group];
      const float value = ToFloat(values[slot * piece.stride + dim]) - decoded.low[group];
      const float level = scale == 0 ? 0 : std::clamp(std::rint(value / scale), 0.0f, 3.0f);
      const CodePlace place = PlaceOf(piece, slot, dim);
      codes[place.byte] =
          static_cast<uint8_t>(codes[place.byte] | static_cast<int>(level) << place.shift);
    }
    std::memcpy(codes + piece.code_bytes() + slot * piece.exact * sizeof(Bf16),
                values + slot * piece.stride + piece.dims, piece.exact * sizeof(Bf16));
  }
}

void DecodePiece(const Piece& piece, const uint8_t* bytes, Bf16* values) {
  const Groups decoded = DecodedGroups(piece, bytes);
  const uint8_t* codes = bytes + 4 + 2 * piece.groups();
  for (size_t slot = 0; slot < piece.slots; ++slot) {
    for (size_t dim = 0; dim < piece.dims; ++dim) {
      const size_t group = piece.GroupOf(slot, dim);
      const CodePlace place = PlaceOf(piece, slot, dim);
      const auto level = static_cast<float>(codes[place.byte] >> place.shift & 3);
      values[slot * piece.stride + dim] = ToBf16(level * decoded.high[group] + decoded.low[group]);
    }
    std::memcpy(values + slot * piece.stride + piece.dims,
                codes + piece.code_bytes() + slot * piece.exact * sizeof(Bf16),
                piece.exact * sizeof(Bf16));
  }
}

}  // namespace

size_t Kv2PieceBytes(const KvRun& run, size_t plane) { return PieceOf(run, plane).bytes(); }

bool EncodeKv2(const KvRun& run, const Bf16* values, PayloadWriter& writer) {
  for (size_t i = 0; i < size_t{run.blocks} * run.layers; ++i, values += run.LayerElements()) {
    if (!FitsQuantised(run, values)) return false;
    for (size_t plane = 0; plane < size_t{run.kv_heads} * run.planes; ++plane) {
      const Piece piece = PieceOf(run, plane % run.planes);
      uint8_t* bytes = writer.Take(piece.bytes());
      if (bytes == nullptr) return false;
      EncodePiece(piece, values + plane * run.PieceElements(), bytes);
    }
    writer.Sum();
  }
  return true;
}

absl::Status DecodeKv2(const KvRun& run, PayloadReader& reader, Bf16* values) {
  for (size_t i = 0; i < size_t{run.blocks} * run.layers; ++i, values += run.LayerElements()) {
    for (size_t plane = 0; plane < size_t{run.kv_heads} * run.planes; ++plane) {
      const Piece piece = PieceOf(run, plane % run.planes);
      const uint8_t* bytes = reader.Take(piece.bytes());
      if (bytes == nullptr) return Truncated("kv2", "a piece");
      DecodePiece(piece, bytes, values + plane * run.PieceElements());
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
