#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_codec.h"

// The KV codecs' payloads (docs/adr/0011-kv-codecs.md) made and read in device memory, the same
// bytes as kvstore/codec_*.cc. What comes out, how large it is and what is wrong with it is in a
// KvCodecResult of device memory, that the host copies when the stream is there.

namespace penstock::cuda {

enum class KvFault : uint32_t {
  kValues,     // a value that the codec does not hold
  kHead,       // of a tile
  kTruncated,  // a tile goes beyond the payload
  kCodes,      // of a size that the tile does not have
  kEscape,     // beyond its tile
  kEscapes,    // more or fewer than there should be
  kFrequencies,
  kState,
  kWords,  // do not add up
  kLeftOver,
  kNone = 15,
};
inline constexpr uint32_t kNoKvFault = 0xffffffff;
// A fault is known by the first place that has one: the same whatever ran first.
constexpr uint32_t PackKvFault(KvFault fault, uint32_t place) {
  return (place < (1u << 28) - 1 ? place : (1u << 28) - 2) << 4 | static_cast<uint32_t>(fault);
}
constexpr KvFault FaultOf(uint32_t packed) { return static_cast<KvFault>(packed & 15u); }
constexpr uint32_t FaultPlace(uint32_t packed) { return packed >> 4; }

struct KvCodecResult {
  uint32_t fault = kNoKvFault;
  uint32_t coded_bytes = 0;    // what the codec made of it
  uint32_t payload_bytes = 0;  // of what lies in the payload: that, or the raw bytes
  uint32_t stored = 0;         // 1: the raw bytes
  uint32_t checksum = 0;       // CRC32C
  // 1: decoders have found every part within the payload, encoders of cgx that it has room for all.
  uint32_t framed = 0;
  uint32_t streams_end = 0;  // of cgx in the payload
};
// Before the first of the launches that share one.
void ClearKvCodecResult(KvCodecResult* result, void* stream);

// A tile of a lossless payload.
struct KvTile {
  uint32_t offset;  // of its head in the payload
  uint32_t bytes;
  uint32_t coded;  // as in its head, and so the rest
  uint16_t escapes;
  uint8_t base;
  LosslessMode mode;
};

struct LosslessParams {
  Bf16* values = nullptr;  // only read by encoders
  uint32_t elements = 0;   // a multiple of 64, at most 2^29
  std::byte* payload = nullptr;
  uint32_t payload_bytes = 0;  // decoders: that came. Encoders never write more than the raw bytes
  KvTile* tiles = nullptr;     // scratch: [LosslessTiles]
  std::byte* words = nullptr;  // scratch of EncodeLxr: [LxrScratchBytes]
  KvCodecResult* result = nullptr;
};
constexpr uint32_t LosslessTiles(uint32_t elements, uint32_t tile) {
  return (elements + tile - 1) / tile;
}
// Frequencies, states and words of every tile.
inline constexpr size_t kLxrTileScratch = kRansHeadBytes + 2 * size_t{kLxrTile};
constexpr size_t LxrScratchBytes(uint32_t elements) {
  return LosslessTiles(elements, kLxrTile) * kLxrTileScratch;
}

// Set coded_bytes; `payload` is void where they are not less than the raw bytes.
void EncodeLx16(const LosslessParams& params, void* stream);
void EncodeLxr(const LosslessParams& params, void* stream);
// Set `fault`, and then `values` is void.
void DecodeLx16(const LosslessParams& params, void* stream);
void DecodeLxr(const LosslessParams& params, void* stream);

// What a row's elements are in f8, i8, i4r and k8v4.
enum class KvRowCode : uint8_t { kF8E4m3, kF8E5m2, kI8, kI4, kI4Rotated };
constexpr uint32_t RowCodeBits(KvRowCode code) { return code < KvRowCode::kI4 ? 8 : 4; }

// Layers of blocks one after the other: of each, codes [head][plane][slot], then scales (and
// minima), then exact elements, as kvstore/codec/codec_rows.cc has them. 2-byte aligned.
struct KvRowsParams {
  Bf16* values = nullptr;  // [layers][heads][planes][slots][groups * dims + exact]
  std::byte* payload = nullptr;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t planes = 0;  // at most 2
  uint32_t slots = 0;
  uint32_t groups = 0;         // that have a scale of their own, in a slot
  uint32_t dims = 0;           // of a group: a multiple of 32, at most kQuantisedGroupMax
  uint32_t exact = 0;          // elements behind them that are kept as they are
  KvRowCode codes[2] = {};     // by plane
  uint32_t scales_offset = 0;  // of a layer, in bytes
  uint32_t exact_offset = 0;
  uint32_t layer_bytes = 0;
  bool behind_streams = false;  // `payload` starts at streams_end, and waits for `framed`
  KvCodecResult* result = nullptr;
};
// Reports values that do not fit; how large it is is known before.
void EncodeKvRows(const KvRowsParams& params, void* stream);
void DecodeKvRows(const KvRowsParams& params, void* stream);

// Pieces of kv2, as kvstore/codec/codec_kv2.cc has them; 2-byte aligned.
struct Kv2Params {
  Bf16* values = nullptr;  // [layers][heads][planes][slots][dims + exact]
  std::byte* payload = nullptr;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t planes = 0;  // at most 2
  uint32_t slots = 0;   // a multiple of 4
  uint32_t dims = 0;    // a multiple of 32
  uint32_t exact = 0;
  KvCodecResult* result = nullptr;
};
// Reports values that do not fit; how large it is is known before.
void EncodeKv2(const Kv2Params& params, void* stream);
void DecodeKv2(const Kv2Params& params, void* stream);

// What cgx is calibrated with for one head of one plane of one layer.
struct CgxUnit {
  float step;
  uint32_t low_bits;
  uint8_t frequencies[kRansSymbols];
};
// Consecutive units of consecutive blocks under one entropy coder.
struct CgxStream {
  uint32_t first_block;  // of the run
  uint32_t first_unit;   // of a block
  uint32_t units;
  uint32_t symbols;  // of all of them
  uint32_t symbols_before;
  uint32_t low_bytes;
  uint32_t offset, bytes, words, escapes;  // the kernels' own
};
struct CgxParams {
  Bf16* values = nullptr;  // [blocks][units_of_block][slots][dims + exact]
  std::byte* payload = nullptr;
  uint32_t payload_bytes = 0;  // decoders: that came
  uint32_t raw_bytes = 0;      // of the whole run: encoders write nothing that is not smaller
  uint32_t first_byte = 0;     // of the first stream
  uint32_t behind_bytes = 0;   // behind the streams: exact elements and what the caller adds
  uint32_t blocks = 0;
  uint32_t units_of_block = 0;  // layers * heads * planes
  uint32_t first_unit = 0;      // of the run's first layer, in `units`
  uint32_t slots = 0;
  uint32_t dims = 0;
  uint32_t exact = 0;
  const CgxUnit* units = nullptr;
  const float* means = nullptr;  // [units][dims]
  CgxStream* streams = nullptr;  // [stream_count]
  uint32_t stream_count = 0;
  std::byte* words = nullptr;  // scratch of the encoder: [CgxScratchBytes]
  KvCodecResult* result = nullptr;
};
constexpr size_t CgxScratchBytes(size_t elements, size_t streams) {
  return 2 * elements + streams * sizeof(RansStates);
}
// Sets coded_bytes, streams_end and framed, and reports values that do not fit.
void EncodeCgx(const CgxParams& params, void* stream);
void DecodeCgx(const CgxParams& params, void* stream);

// Behind an encoder: the raw bytes instead of a payload that is faulty or not smaller; sets
// payload_bytes and stored. 16-byte aligned.
struct SettleParams {
  const std::byte* raw = nullptr;
  uint32_t raw_bytes = 0;  // a multiple of 16
  std::byte* payload = nullptr;
  uint32_t coded_bytes = 0;  // where they are known; 0: what the encoder has set
  KvCodecResult* result = nullptr;
};
void SettlePayload(const SettleParams& params, int processors, void* stream);

constexpr uint32_t kChecksumChunkBytes = 16 << 10;
struct ChecksumParams {
  const std::byte* bytes = nullptr;  // 16-byte aligned
  uint32_t size_max = 0;
  const uint32_t* size = nullptr;  // device memory: how many they are; or null: size_max
  uint32_t* partials = nullptr;    // scratch: [ChecksumChunks(size_max)]
  KvCodecResult* result = nullptr;
};
constexpr uint32_t ChecksumChunks(uint32_t bytes) {
  return (bytes + kChecksumChunkBytes - 1) / kChecksumChunkBytes;
}
void ChecksumPayload(const ChecksumParams& params, int processors, void* stream);

}  // namespace penstock::cuda
