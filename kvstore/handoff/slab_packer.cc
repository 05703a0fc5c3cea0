#include "kvstore/handoff/slab_packer.h"

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

namespace penstock {

void SlabPacker::Pack(const KvCodecSpec& codec, const SlabSource& source,
                      std::span<std::byte> buffer, SlabHeader& header) {
  Fill(codec, source, buffer, header);
  header.payload_crc = Crc32c(buffer.first(header.payload_bytes));
}

void SlabPacker::Fill(const KvCodecSpec& codec, const SlabSource& source,
                      std::span<std::byte> buffer, SlabHeader& header) {
  if (codec.codec == KvCodec::kRaw) {
    GatherSlab(pages_, header, source.blocks, buffer);
    return;
  }
  const KvRun run = RunOfSlab(pages_.layout, header, source.sequence_blocks);
  raw_.resize(header.raw_bytes);
  encoded_.resize(std::max(encoded_.size(), EncodedKvBound(run)));
  GatherSlab(pages_, header, source.blocks, raw_);
  // The slab's own checksum covers the payload.
  const auto used =
      EncodeKv(codec, run, {.calibration = calibration_, .checksum = false}, raw_, encoded_);
  const bool smaller = used.ok() && *used < raw_.size();
  const std::span<const std::byte> packed =
      smaller ? std::span<const std::byte>(encoded_).first(*used) : raw_;
  std::memcpy(buffer.data(), packed.data(), packed.size());
  header.codec = smaller ? SlabCodec::kEncoded : SlabCodec::kRaw;
  header.payload_bytes = static_cast<uint32_t>(packed.size());
}

}  // namespace penstock
