#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/crc32c.h"
#include "kernels/cpu/kv_quant.h"
#include "kernels/kv_codec.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"

// Internals that the codecs share. Included by kvstore/codec/codec*.cc and device_kv_codec*.cc
// only.

namespace penstock::kv_codec {

// Appends to a payload buffer of EncodedKvBound bytes and computes the checksum while the bytes are
// still in the CPU's cache.
class PayloadWriter {
 public:
  PayloadWriter(std::span<std::byte> room, bool checksum) : room_(room), checksum_(checksum) {}

  // Room for `bytes` bytes, which the caller fills before the next call. Null when there is not
  // enough room: the payload would then be no smaller than the raw bytes.
  uint8_t* Take(size_t bytes) {
    if (bytes > room_.size() - size_) return nullptr;
    auto* taken = reinterpret_cast<uint8_t*>(room_.data() + size_);
    size_ += bytes;
    return taken;
  }
  // Returns the last `bytes` bytes of the room taken; everything before must be filled.
  void GiveBack(size_t bytes) { size_ -= bytes; }
  // Adds the bytes filled since the last call to the checksum.
  void Sum() {
    if (checksum_) crc_ = Crc32c(room_.subspan(summed_, size_ - summed_), crc_);
    summed_ = size_;
  }

  size_t size() const { return size_; }
  size_t left() const { return room_.size() - size_; }
  uint32_t crc() const { return crc_; }

 private:
  const std::span<std::byte> room_;
  const bool checksum_;
  size_t size_ = 0;
  size_t summed_ = 0;
  uint32_t crc_ = 0;
};

// Reads a payload from untrusted bytes with bounds checks.
class PayloadReader {
 public:
  PayloadReader(std::span<const std::byte> payload, bool checksum)
      : payload_(payload), checksum_(checksum) {}

  // The next `bytes` bytes; null when fewer are left.
  const uint8_t* Take(size_t bytes) {
    if (bytes > payload_.size() - size_) return nullptr;
    const auto* taken = reinterpret_cast<const uint8_t*>(payload_.data() + size_);
    if (checksum_) crc_ = Crc32c(payload_.subspan(size_, bytes), crc_);
    size_ += bytes;
    return taken;
  }
  size_t left() const { return payload_.size() - size_; }
  uint32_t crc() const { return crc_; }

 private:
  const std::span<const std::byte> payload_;
  const bool checksum_;
  size_t size_ = 0;
  uint32_t crc_ = 0;
};

template <class T>
T LoadAs(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}
template <class T>
void StoreAs(uint8_t* bytes, const T& value) {
  std::memcpy(bytes, &value, sizeof(value));
}

// The header for an encoded payload, without the fields that depend on the payload.
KvCodecHeader HeaderOf(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context);
// DATA_LOSS names the field that differs from the receiver's expectation.
absl::Status CheckHeader(const KvCodecHeader& header, const KvCodecSpec& spec, const KvRun& run,
                         const KvCodecContext& context, size_t payload_bytes);

inline absl::Status Truncated(std::string_view codec, std::string_view part) {
  return DataLoss("KV codec {}: {} goes beyond the payload", std::string(codec), std::string(part));
}

// The number of quantised dimensions, and of those in one group: a head, or 128 elements of a
// latent.
inline int QuantisedDims(const KvRun& run) { return run.head_dim - run.rope_dim; }
inline int GroupDims(const KvRun& run) {
  const int dims = QuantisedDims(run);
  return dims > 256 && dims % 128 == 0 ? 128 : dims;
}
// Groups in a row.
inline size_t GroupsOf(const KvRun& run) {
  return static_cast<size_t>(QuantisedDims(run) / GroupDims(run));
}
// The number of elements before those of (block, layer, head, plane).
inline size_t PieceOffset(const KvRun& run, size_t block, size_t layer, size_t head, size_t plane) {
  return (block * run.layers + layer) * run.LayerElements() +
         (head * run.planes + plane) * run.PieceElements();
}

// True when a lossy codec can represent a layer of a block: no element is infinite, NaN or so large
// that a sum could overflow.
inline bool FitsQuantised(const KvRun& run, const Bf16* values) {
  return ActiveKvCodecOps().max_exponent(values, static_cast<int64_t>(run.LayerElements())) <
         kQuantisedExponentMax;
}

inline bool HasProtectedBlocks(const KvCodecSpec& spec) {
  return spec.codec == KvCodec::kCgx || spec.codec == KvCodec::kKv2;
}
inline constexpr KvCodecSpec kProtected{KvCodec::kI8, 0};  // the codec of protected blocks

// The part of a run that has blocks [first, first + blocks).
inline KvRun PartOf(const KvRun& run, uint32_t first, uint32_t blocks) {
  KvRun part = run;
  part.first_block += first;
  part.blocks = blocks;
  part.protected_first = part.protected_last = 0;
  return part;
}

// The three parts of a run: protected, unprotected, protected.
struct RunParts {
  KvRun first, middle, last;
  explicit RunParts(const KvRun& run)
      : first(PartOf(run, 0, run.protected_first)),
        middle(PartOf(run, run.protected_first,
                      run.blocks - run.protected_first - run.protected_last)),
        last(PartOf(run, run.blocks - run.protected_last, run.protected_last)) {}
};

// The division of a cgx run into frames of blocks, and of frames into streams.
inline constexpr size_t kCgxStreamSymbols = 32768;
inline size_t PieceSymbols(const KvRun& run) {
  return run.block_tokens * static_cast<size_t>(QuantisedDims(run));
}
inline size_t CgxFrameBlocks(const KvRun& run) {
  return std::max<size_t>(1, kCgxStreamSymbols / PieceSymbols(run));
}

// The size of kv2 for one plane of one head of a block.
size_t Kv2PieceBytes(const KvRun& run, size_t plane);

// The coding of a plane's elements in f8, i8, i4r and k8v4.
struct PlaneFormat {
  int bits;
  bool rotate;
};
PlaneFormat FormatOf(KvCodec codec, const KvRun& run, size_t plane);
// The size of one layer of one block in those codecs, and the offsets of its parts.
struct RowsLayer {
  size_t params = 0;
  size_t exact = 0;
  size_t bytes = 0;
};
RowsLayer RowsLayerOf(KvCodec codec, const KvRun& run);

// Encoders return false when the format cannot represent the values or the payload exceeds the
// room.
bool EncodeLx16(const Bf16* values, size_t elements, PayloadWriter& writer);
bool EncodeLxr(const Bf16* values, size_t elements, PayloadWriter& writer);
bool EncodeRows(const KvCodecSpec& spec, const KvRun& run, const Bf16* values,
                PayloadWriter& writer);
bool EncodeCgx(const KvCodecSpec& spec, const KvRun& run, const KvCalibration& calibration,
               const Bf16* values, PayloadWriter& writer);
bool EncodeKv2(const KvRun& run, const Bf16* values, PayloadWriter& writer);

absl::Status DecodeLx16(PayloadReader& reader, size_t elements, Bf16* values);
absl::Status DecodeLxr(PayloadReader& reader, size_t elements, Bf16* values);
absl::Status DecodeRows(const KvCodecSpec& spec, const KvRun& run, PayloadReader& reader,
                        Bf16* values);
absl::Status DecodeCgx(const KvCodecSpec& spec, const KvRun& run, const KvCalibration& calibration,
                       PayloadReader& reader, Bf16* values);
absl::Status DecodeKv2(const KvRun& run, PayloadReader& reader, Bf16* values);

}  // namespace penstock::kv_codec
