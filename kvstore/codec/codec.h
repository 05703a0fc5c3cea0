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

class KvCalibration;

// How keys and values travel and rest. docs/adr/0011-kv-codecs.md has the bit layouts.
enum class KvCodec : uint8_t {
  kRaw = 0x00,   // as they are
  kLx16 = 0x10,  // lossless: 4-bit codes for exponents
  kLxr = 0x11,   // lossless: entropy-coded exponents
  kF8 = 0x20,    // fp8 with a power of two per (token, head); levels 0 (e4m3) and 1 (e5m2)
  kI8 = 0x21,    // 8 bits, scale and minimum per (token, head)
  kI4r = 0x30,   // 4 bits, the same; keys rotated
  kK8v4 = 0x31,  // keys as kI8, values in 4 bits
  kCgx = 0x40,   // mean removed, entropy-coded with calibrated tables; levels 1 (finest) to 5
  kKv2 = 0x50,   // 2 bits, keys by channel, values by token
};

struct KvCodecSpec {
  KvCodec codec = KvCodec::kRaw;
  uint8_t level = 0;  // 0 where the codec has none
  bool operator==(const KvCodecSpec&) const = default;
};

// "raw", "lx16", "lxr", "f8", "f8e5m2", "i8", "i4r", "k8v4", "cgx1" .. "cgx5", "kv2".
std::string KvCodecName(const KvCodecSpec& spec);
// INVALID_ARGUMENT lists the names.
absl::StatusOr<KvCodecSpec> ParseKvCodec(std::string_view name);
// Every codec and level, from exact to coarse.
std::vector<KvCodecSpec> AllKvCodecs();
// Gives back every bit pattern, NaN payloads included.
bool IsLossless(const KvCodecSpec& spec);
bool NeedsCalibration(const KvCodecSpec& spec);

// What is encoded: bf16 [block][layer][kv_head][plane][slot][head_dim], planes K and V, or one
// plane of MLA latents whose last rope_dim elements every codec keeps exactly.
struct KvRun {
  uint32_t first_block = 0;  // of the sequence
  uint32_t blocks = 0;
  uint16_t first_layer = 0;
  uint16_t layers = 0;
  uint16_t kv_heads = 0;
  uint16_t planes = 2;
  uint16_t block_tokens = 16;
  uint16_t head_dim = 0;
  uint16_t rope_dim = 0;
  // Blocks at the start (attention sinks) and at the end (the recent window) of the run that kCgx
  // and kKv2 code as kI8 does.
  uint16_t protected_first = 0;
  uint16_t protected_last = 0;

  size_t PieceElements() const { return size_t{block_tokens} * head_dim; }  // of one plane
  size_t LayerElements() const { return size_t{kv_heads} * planes * PieceElements(); }
  size_t Elements() const { return size_t{blocks} * layers * LayerElements(); }
  size_t RawBytes() const { return Elements() * sizeof(Bf16); }
  bool operator==(const KvRun&) const = default;
};
inline constexpr size_t kKvRunBytesMax = size_t{1} << 30;

// Blocks [first_block, first_block + blocks) and layers [first_layer, first_layer + layers).
KvRun RunOf(const KvLayout& layout, uint32_t first_block, uint32_t blocks, uint16_t first_layer,
            uint16_t layers);

// The sequence's first block (attention sinks) and its last 128 tokens, whatever part of it the run
// is. `sequence_blocks` are those of the whole sequence.
KvRun WithProtectedBlocks(KvRun run, uint32_t sequence_blocks);

struct KvCodecContext {
  const KvCalibration* calibration = nullptr;  // for those that need it
  bool checksum = true;  // CRC32C of the payload; off where the carrier has its own
};

// The codecs are pure functions of their arguments (and of no instruction set); any thread.

// INVALID_ARGUMENT names what of the run or the calibration `spec` cannot do.
absl::Status CheckKvRun(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context);
// What EncodeKv needs at most, header included: never more than the raw bytes and 1/16 and 4 KiB.
size_t EncodedKvBound(const KvRun& run);

// `raw` has run.RawBytes(), 2-byte aligned; `encoded` at least EncodedKvBound(run). Returns the
// bytes used. Where a codec cannot hold the values (NaN and infinity in a lossy one) or would not
// make them smaller, they are stored as they are. INVALID_ARGUMENT as CheckKvRun.
absl::StatusOr<size_t> EncodeKv(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, std::span<const std::byte> raw,
                                std::span<std::byte> encoded);

// `encoded` is exactly what EncodeKv returned; `run` and spec what the receiver expects: DATA_LOSS
// names the field of the header that says otherwise, or what does not add up behind it; then `raw`
// (run.RawBytes(), 2-byte aligned) is void.
absl::Status DecodeKv(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                      std::span<const std::byte> encoded, std::span<std::byte> raw);

}  // namespace penstock
