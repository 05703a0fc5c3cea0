#include "kvstore/slab_packer.h"

#include <algorithm>
#include <cstring>

namespace penstock {

void SlabPacker::Pack(const KvCodecSpec& codec, std::span<const uint32_t> blocks,
                      std::span<std::byte> buffer, SlabHeader& header) {
  Fill(codec, blocks, buffer, header);
  header.payload_crc = Crc32c(buffer.first(header.payload_bytes));
}

void SlabPacker::Fill(const KvCodecSpec& codec, std::span<const uint32_t> blocks,
                      std::span<std::byte> buffer, SlabHeader& header) {
  if (codec.codec == KvCodec::kRaw) {
    GatherSlab(pages_, header, blocks, buffer);
    return;
  }
  const KvRun run = RunOfSlab(pages_.layout, header);
  raw_.resize(header.raw_bytes);
  encoded_.resize(std::max(encoded_.size(), EncodedKvBound(run)));
  GatherSlab(pages_, header, blocks, raw_);
  // The slab's own checksum covers it.
  const auto used = EncodeKv(codec, run, {.checksum = false}, raw_, encoded_);
  const bool smaller = used.ok() && *used < raw_.size();
  const std::span<const std::byte> source =
      smaller ? std::span<const std::byte>(encoded_).first(*used) : raw_;
  std::memcpy(buffer.data(), source.data(), source.size());
  header.codec = smaller ? SlabCodec::kEncoded : SlabCodec::kRaw;
  header.payload_bytes = static_cast<uint32_t>(source.size());
}

}  // namespace penstock
