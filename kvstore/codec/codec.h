#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"

namespace penstock {

// This room compresses KV for links and tiers: the codecs, on CPU and GPU, and the choice among
// them. It knows bytes, layouts and the calibration of a model, but not slabs' owners, wires or
// tiers. docs/adr/0011-kv-codecs.md has the bit layouts and the reasons.

class KvCalibration;

// The codecs of KV on links and in tiers.
enum class KvCodec : uint8_t {
  kRaw = 0x00,   // no encoding
  kLx16 = 0x10,  // lossless: 4-bit codes for exponents
  kLxr = 0x11,   // lossless: entropy-coded exponents
  // fp8 with a power of two as scale per (token, head); levels 0 (e4m3) and 1 (e5m2)
  kF8 = 0x20,
  kI8 = 0x21,    // 8 bits; scale and minimum per (token, head)
  kI4r = 0x30,   // 4 bits; scale and minimum as kI8; keys rotated
  kK8v4 = 0x31,  // keys as kI8, values in 4 bits
  kCgx = 0x40,   // mean removed, entropy-coded by calibrated tables; levels 1 (finest) to 5
  kKv2 = 0x50,   // 2 bits; keys quantised by channel, values by token
};

struct KvCodecSpec {
  KvCodec codec = KvCodec::kRaw;
  uint8_t level = 0;  // 0 for codecs without levels
  bool operator==(const KvCodecSpec&) const = default;
};

// "raw", "lx16", "lxr", "f8", "f8e5m2", "i8", "i4r", "k8v4", "cgx1" .. "cgx5", "kv2".
std::string KvCodecName(const KvCodecSpec& spec);
// INVALID_ARGUMENT lists the names.
absl::StatusOr<KvCodecSpec> ParseKvCodec(std::string_view name);
// Every codec and level, from exact to coarse.
std::vector<KvCodecSpec> AllKvCodecs();
// True when decoding restores every bit pattern, NaN payloads included.
bool IsLossless(const KvCodecSpec& spec);
bool NeedsCalibration(const KvCodecSpec& spec);

// The geometry of the encoded data: bf16 [block][layer][kv_head][plane][slot][head_dim]. The planes
// are K and V, or one plane of MLA latents whose last rope_dim elements every codec keeps exactly.
struct KvRun {
  uint32_t first_block = 0;  // index in the sequence
  uint32_t blocks = 0;
  uint16_t first_layer = 0;
  uint16_t layers = 0;
  uint16_t kv_heads = 0;
  uint16_t planes = 2;
  uint16_t block_tokens = 16;
  uint16_t head_dim = 0;
  uint16_t rope_dim = 0;
  // The numbers of blocks at the start (attention sinks) and at the end (recent window) of the run
  // that kCgx and kKv2 encode as kI8.
  uint16_t protected_first = 0;
  uint16_t protected_last = 0;

  // Elements of one plane of one head.
  size_t PieceElements() const { return size_t{block_tokens} * head_dim; }
  size_t LayerElements() const { return size_t{kv_heads} * planes * PieceElements(); }
  size_t Elements() const { return size_t{blocks} * layers * LayerElements(); }
  size_t RawBytes() const { return Elements() * sizeof(Bf16); }
  bool operator==(const KvRun&) const = default;
};
inline constexpr size_t kKvRunBytesMax = size_t{1} << 30;

// The run of blocks [first_block, first_block + blocks) and layers [first_layer, first_layer +
// layers).
KvRun RunOf(const KvLayout& layout, uint32_t first_block, uint32_t blocks, uint16_t first_layer,
            uint16_t layers);

// Marks as protected the sequence's first block (attention sinks) and its last 128 tokens, as far
// as they are in the run. `sequence_blocks` is the number of blocks of the whole sequence.
KvRun WithProtectedBlocks(KvRun run, uint32_t sequence_blocks);

// The environment of a call to a codec.
struct KvCodecContext {
  const KvCalibration* calibration = nullptr;  // required by codecs that NeedsCalibration
  // CRC32C of the payload; off when the carrier has a checksum of its own.
  bool checksum = true;
};

// The codecs are pure functions of their arguments: any thread, and equal bytes on every
// instruction set.

// INVALID_ARGUMENT names the property of the run or the calibration that `spec` does not support.
absl::Status CheckKvRun(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context);
// The upper limit of EncodeKv's output with its header: the raw bytes plus 1/16 plus 4 KiB.
size_t EncodedKvBound(const KvRun& run);

// `raw` has run.RawBytes() bytes, aligned to 2; `encoded` has at least EncodedKvBound(run). Returns
// the number of bytes used. Values are stored without encoding when the codec cannot represent them
// (NaN and infinity in a lossy codec) or would not make them smaller. Errors as for CheckKvRun.
absl::StatusOr<size_t> EncodeKv(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, std::span<const std::byte> raw,
                                std::span<std::byte> encoded);

// `encoded` is exactly EncodeKv's output; `spec` and `run` are the receiver's expectation. `raw`
// has run.RawBytes() bytes, aligned to 2. DATA_LOSS names the header field that differs or the
// inconsistent part of the payload; the content of `raw` is then undefined.
absl::Status DecodeKv(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                      std::span<const std::byte> encoded, std::span<std::byte> raw);

}  // namespace penstock
