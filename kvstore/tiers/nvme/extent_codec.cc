#include "kvstore/tiers/nvme/extent_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kvstore/codec/codec_header.h"
#include "kvstore/tiers/nvme/segment_format.h"

namespace penstock {
namespace {

constexpr KvCodecSpec kExact[] = {{KvCodec::kLx16}, {KvCodec::kLxr}};

size_t WholePages(size_t bytes) { return (bytes + kSegmentPage - 1) / kSegmentPage * kSegmentPage; }

}  // namespace

ExtentCodec::ExtentCodec(Options options)
    : options_(std::move(options)),
      run_(RunOf(options_.layout, 0, 1, 0, static_cast<uint16_t>(options_.layout.layers))),
      choice_(options_.choices) {
  PENSTOCK_CHECK(IsExtentCodec(static_cast<uint8_t>(options_.codec.codec)));
  // The codecs encode bf16; pages of other formats are compact already.
  if (options_.layout.dtype == KvDtype::kBf16) encoded_.resize(EncodedKvBound(run_));
}

KvCodecSpec ExtentCodec::Choose() {
  if (encoded_.empty()) return {};
  if (options_.choices.empty()) return options_.codec;
  if (full_) {
    const auto smallest = std::max_element(
        choice_.candidates().begin(), choice_.candidates().end(),
        [](const KvCodecRates& a, const KvCodecRates& b) { return a.ratio < b.ratio; });
    return smallest->spec;
  }
  return choice_.Choose(disk_.bytes_per_s(), kExact, disk_.at_least());
}

ExtentCodec::Stored ExtentCodec::Encode(std::span<const std::byte> page) {
  const KvCodecSpec codec = Choose();
  if (codec.codec == KvCodec::kRaw) return {.bytes = page};
  // The record's checksum covers the payload.
  const auto used =
      EncodeKv(codec, run_, {.checksum = false}, page.first(run_.RawBytes()), encoded_);
  PENSTOCK_CHECK(used.ok());
  const size_t stored = WholePages(*used);
  if (stored >= page.size()) return {.bytes = page};
  auto buffer = std::make_shared<DirectBuffer>(stored);
  std::memcpy(buffer->bytes().data(), encoded_.data(), *used);
  std::fill(buffer->bytes().begin() + static_cast<ptrdiff_t>(*used), buffer->bytes().end(),
            std::byte{0});
  return {.codec = static_cast<uint8_t>(codec.codec), .bytes = buffer->bytes(), .buffer = buffer};
}

absl::Status ExtentCodec::Decode(uint8_t codec, std::span<const std::byte> bytes,
                                 std::span<std::byte> page) const {
  PENSTOCK_CHECK(codec != kStoredRaw && IsExtentCodec(codec));
  if (encoded_.empty() || bytes.size() < kKvCodecHeaderBytes) {
    return DataLoss("an encoded block has {} bytes, too few or of a KV type that is never encoded",
                    bytes.size());
  }
  ASSIGN_OR_RETURN(const KvCodecHeader header,
                   DecodeKvCodecHeader(bytes.first(kKvCodecHeaderBytes)));
  const size_t used = kKvCodecHeaderBytes + size_t{header.payload_bytes};
  if (used > bytes.size()) {
    return DataLoss("an encoded block has {} bytes, but only {} pages are stored", used,
                    bytes.size() / kSegmentPage);
  }
  return DecodeKv({static_cast<KvCodec>(codec)}, run_, {.checksum = false}, bytes.first(used),
                  page.first(run_.RawBytes()));
}

}  // namespace penstock
