#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_codec.h"

// Encodes and decodes KV payloads (docs/adr/0011-kv-codecs.md) in device memory; the bytes equal
// those of kvstore/codec. Each call enqueues kernels on `stream`. Sizes, checksum and faults are
// reported in a KvCodecResult in device memory, which the host copies when the stream has
// completed.

namespace penstock::cuda {

enum class KvFault : uint32_t {
  kValues,     // the codec cannot represent a value
  kHead,       // a tile's head is invalid
  kTruncated,  // a tile extends beyond the payload
  kCodes,      // the size of the codes does not match the tile
  kEscape,     // an escape lies outside its tile
  kEscapes,    // the number of escapes is wrong
  kFrequencies,
  kState,
  kWords,  // the rANS words do not end at the initial states
  kLeftOver,
  kNone = 15,
};
inline constexpr uint32_t kNoKvFault = 0xffffffff;
// Packs a fault with its place; the smallest value, that is the first place, is kept, so that the
// result does not depend on the order of execution.
constexpr uint32_t PackKvFault(KvFault fault, uint32_t place) {
  return (place < (1u << 28) - 1 ? place : (1u << 28) - 2) << 4 | static_cast<uint32_t>(fault);
}
constexpr KvFault FaultOf(uint32_t packed) { return static_cast<KvFault>(packed & 15u); }
constexpr uint32_t FaultPlace(uint32_t packed) { return packed >> 4; }

struct KvCodecResult {
  uint32_t fault = kNoKvFault;
  uint32_t coded_bytes = 0;    // size that the codec produced
  uint32_t payload_bytes = 0;  // size of the payload: coded_bytes, or the raw size if stored
  uint32_t stored = 0;         // 1: the payload holds the raw bytes
  uint32_t checksum = 0;       // CRC32C
  // 1: a decoder found every part inside the payload; an encoder of cgx found room for every part.
  uint32_t framed = 0;
  uint32_t streams_end = 0;  // cgx: end of the entropy-coded streams in the payload
};
// Enqueued before the first of the launches that share a result.
void ClearKvCodecResult(KvCodecResult* result, void* stream);

// A tile of a lossless payload; the kernels' scratch.
struct alignas(16) KvTile {
  uint32_t offset;  // offset of its head in the payload
  uint32_t bytes;
  uint32_t coded;  // this and the fields below: as in LosslessHead
  uint16_t escapes;
  uint8_t base;
  LosslessMode mode;
};

// A piece of a lossless payload in which a decoder finds the tiles; the kernels' scratch.
struct KvSegment {
  uint32_t first;  // offset of the head of the first tile that begins in the segment
  uint32_t end;    // end of the last tile that begins in it
  uint32_t tiles;
};

// Arguments of the lossless codecs lx16 and lxr. All pointers are to device memory.
struct LosslessParams {
  Bf16* values = nullptr;  // [elements]; encoders only read it
  uint32_t elements = 0;   // a multiple of 64, at most 2^29
  std::byte* payload = nullptr;
  // Decoders: size received; encoders never write more than the raw size.
  uint32_t payload_bytes = 0;
  KvTile* tiles = nullptr;        // scratch, [LosslessTiles]
  KvSegment* segments = nullptr;  // scratch of decoders, [LosslessSegmentsMax]
  std::byte* words = nullptr;     // scratch of EncodeLxr, [LxrScratchBytes]
  KvCodecResult* result = nullptr;
};
constexpr uint32_t LosslessTiles(uint32_t elements, uint32_t tile) {
  return (elements + tile - 1) / tile;
}
// Size of the largest tile that an encoder makes.
constexpr uint32_t LosslessTileBytesMax(uint32_t tile) {
  return static_cast<uint32_t>(sizeof(LosslessHead)) + 2 * tile;
}
inline constexpr uint32_t kSegmentTiles = 8;
constexpr uint32_t LosslessSegmentBytes(uint32_t tile) {
  return kSegmentTiles * LosslessTileBytesMax(tile);
}
// A rest of less than two tiles belongs to the segment before it.
constexpr uint32_t LosslessSegments(uint32_t payload_bytes, uint32_t tile) {
  const uint32_t rest_max = 2 * LosslessTileBytesMax(tile) - 1, bytes = LosslessSegmentBytes(tile);
  const uint32_t segments = payload_bytes / bytes + (payload_bytes % bytes > rest_max ? 1 : 0);
  return segments > 0 ? segments : 1;
}
constexpr uint32_t LosslessSegmentsMax(uint32_t elements, uint32_t tile) {
  return LosslessTiles(elements, tile) / kSegmentTiles + 1;
}
// Frequencies, states and words of one tile, in bytes.
inline constexpr size_t kLxrTileScratch = kRansHeadBytes + 2 * size_t{kLxrTile};
constexpr size_t LxrScratchBytes(uint32_t elements) {
  return LosslessTiles(elements, kLxrTile) * kLxrTileScratch;
}

// Sets coded_bytes. If they are not below the raw size, the payload is undefined.
void EncodeLx16(const LosslessParams& params, void* stream);
void EncodeLxr(const LosslessParams& params, void* stream);
// Sets `fault`; after a fault the values are undefined.
void DecodeLx16(const LosslessParams& params, void* stream);
void DecodeLxr(const LosslessParams& params, void* stream);

// The code of a row's elements in formats f8, i8, i4r and k8v4.
enum class KvRowCode : uint8_t { kF8E4m3, kF8E5m2, kI8, kI4, kI4Rotated };
constexpr uint32_t RowCodeBits(KvRowCode code) { return code < KvRowCode::kI4 ? 8 : 4; }

// Arguments of the row codecs. A payload has the layers of the blocks in sequence; each layer has
// codes [head][plane][slot], then scales (and minima), then exact elements, as in
// kvstore/codec/codec_rows.cc. All pointers are to device memory, aligned to 2 bytes.
struct KvRowsParams {
  Bf16* values = nullptr;  // [layers][heads][planes][slots][groups * dims + exact]
  std::byte* payload = nullptr;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t planes = 0;  // at most 2
  uint32_t slots = 0;
  uint32_t groups = 0;         // groups with their own scale per slot
  uint32_t dims = 0;           // elements per group: a multiple of 32, at most kQuantisedGroupMax
  uint32_t exact = 0;          // elements after the groups that are stored as bf16
  KvRowCode codes[2] = {};     // for each plane
  uint32_t scales_offset = 0;  // offset of the scales in a layer, in bytes
  uint32_t exact_offset = 0;
  uint32_t layer_bytes = 0;
  bool behind_streams = false;  // the payload starts at streams_end, and waits for `framed`
  KvCodecResult* result = nullptr;
};
// Reports values that the codec cannot represent. The caller knows the coded size.
void EncodeKvRows(const KvRowsParams& params, void* stream);
void DecodeKvRows(const KvRowsParams& params, void* stream);

// Arguments of kv2 (2 bits an element), whose pieces are as in kvstore/codec/codec_kv2.cc. All
// pointers are to device memory, aligned to 2 bytes.
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
// Reports values that the codec cannot represent. The caller knows the coded size.
void EncodeKv2(const Kv2Params& params, void* stream);
void DecodeKv2(const Kv2Params& params, void* stream);

// The calibration of cgx for one head of one plane of one layer.
struct CgxUnit {
  float step;
  uint32_t low_bits;
  uint8_t frequencies[kRansSymbols];
};
// Consecutive units of consecutive blocks that share one entropy coder.
struct CgxStream {
  uint32_t first_block;  // index in the run
  uint32_t first_unit;   // index in a block
  uint32_t units;
  uint32_t symbols;  // total of all units
  uint32_t symbols_before;
  uint32_t low_bytes;
  uint32_t offset, bytes, words, escapes;  // written by the kernels
};
// Arguments of cgx (calibrated levels under rANS). All pointers are to device memory.
struct CgxParams {
  Bf16* values = nullptr;  // [blocks][units_of_block][slots][dims + exact]
  std::byte* payload = nullptr;
  uint32_t payload_bytes = 0;  // decoders: size received
  uint32_t raw_bytes = 0;      // raw size of the run; encoders write nothing that is not smaller
  uint32_t first_byte = 0;     // offset of the first stream in the payload
  uint32_t behind_bytes = 0;   // size of the exact elements and the caller's data after the streams
  uint32_t blocks = 0;
  uint32_t units_of_block = 0;  // layers * heads * planes
  uint32_t first_unit = 0;      // index in `units` of the run's first layer
  uint32_t slots = 0;
  uint32_t dims = 0;
  uint32_t exact = 0;
  const CgxUnit* units = nullptr;
  const float* means = nullptr;  // [units][dims]
  CgxStream* streams = nullptr;  // [stream_count]
  uint32_t stream_count = 0;
  std::byte* words = nullptr;  // scratch of the encoder, [CgxScratchBytes]
  KvCodecResult* result = nullptr;
};
constexpr size_t CgxScratchBytes(size_t elements, size_t streams) {
  return 2 * elements + streams * sizeof(RansStates);
}
// Sets coded_bytes, streams_end and framed, and reports values that the codec cannot represent.
void EncodeCgx(const CgxParams& params, void* stream);
void DecodeCgx(const CgxParams& params, void* stream);

// Follows an encoder: replaces a payload that is faulty or not smaller than the raw bytes by the
// raw bytes, and sets payload_bytes and stored. All pointers are aligned to 16 bytes.
struct SettleParams {
  const std::byte* raw = nullptr;
  uint32_t raw_bytes = 0;  // a multiple of 16
  std::byte* payload = nullptr;
  uint32_t coded_bytes = 0;  // if known to the host; 0: the encoder's result
  KvCodecResult* result = nullptr;
};
void SettlePayload(const SettleParams& params, int processors, void* stream);

// CRC32C of a payload, in chunks of this size.
constexpr uint32_t kChecksumChunkBytes = 16 << 10;
struct ChecksumParams {
  const std::byte* bytes = nullptr;  // 16-byte aligned
  uint32_t size_max = 0;
  const uint32_t* size = nullptr;  // actual size in device memory; null: size_max
  uint32_t* partials = nullptr;    // scratch, [ChecksumChunks(size_max)]
  KvCodecResult* result = nullptr;
};
constexpr uint32_t ChecksumChunks(uint32_t bytes) {
  return (bytes + kChecksumChunkBytes - 1) / kChecksumChunkBytes;
}
void ChecksumPayload(const ChecksumParams& params, int processors, void* stream);

}  // namespace penstock::cuda
