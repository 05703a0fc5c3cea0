#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kvstore/handoff/slab_memory.h"

namespace penstock {
namespace {

class DeviceSlabMemory final : public SlabMemory {
 public:
  DeviceSlabMemory(const KvLayout& layout, DeviceSlabs& slabs, std::span<std::byte> arena,
                   std::unique_ptr<SlabCoder> coder)
      : layout_(layout), slabs_(slabs), coder_(std::move(coder)), arena_(arena), staging_(arena) {}
  ~DeviceSlabMemory() override { slabs_.Free(arena_.data(), arena_.size()); }

  MemoryKind kind() const override { return MemoryKind::kDevice; }
  bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const override {
    if (codec.codec == KvCodec::kRaw) return true;
    return coder_ != nullptr && coder_->Takes(codec, raw_bytes);
  }
  bool Fits(size_t bytes) const override {
    return bytes <= std::min(arena_.size(), slabs_.slab_bytes_max());
  }
  StagingBuffer Acquire(size_t bytes) override { return staging_.Acquire(bytes); }
  size_t used() const override { return staging_.used(); }
  size_t budget() const override { return arena_.size(); }

  void Pack(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> slab,
            SlabHeader& header) override {
    PENSTOCK_CHECK(Takes(codec, slab.size()));
    const DeviceSlabs::Pieces pieces = PiecesOf(header, source.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), slab.size());
    header.payload_crc = slabs_.Gather(pieces, slab.data());
    if (codec.codec != KvCodec::kRaw) Encode(codec, source.sequence_blocks, slab, header);
  }

  void Verify(LandedSlab slab, OnVerified done) override {
    const std::span<const std::byte> payload(slab.data, slab.header.payload_bytes);
    slabs_.Sum(payload, [this, slab = std::move(slab), done = std::move(done)](uint32_t crc) {
      done(Verified(slab, crc));
    });
  }

  void Write(const SlabWrite& write, std::function<void()> written) override {
    const DeviceSlabs::Pieces pieces = PiecesOf(write.header, write.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), write.raw.size());
    slabs_.Scatter(pieces, write.raw.data(), std::move(written));
  }
  void Drain() override { slabs_.Drain(); }

 private:
  void Encode(const KvCodecSpec& codec, uint32_t sequence_blocks, std::span<std::byte> slab,
              SlabHeader& header);
  absl::StatusOr<std::span<const std::byte>> Verified(const LandedSlab& slab, uint32_t crc);
  absl::Status Decode(const LandedSlab& slab, std::span<const std::byte> payload,
                      std::span<std::byte> raw);
  DeviceSlabs::Pieces PiecesOf(const SlabHeader& header, std::span<const uint32_t> blocks) const {
    PENSTOCK_CHECK_LE(header.first_layer + header.layers, layout_.layers);
    PENSTOCK_CHECK_EQ(blocks.size(), header.blocks);
    return {.pages = blocks,
            .offset = header.first_layer * layout_.LayerBytes(),
            .bytes = header.layers * layout_.LayerBytes()};
  }

  const KvLayout layout_;
  DeviceSlabs& slabs_;
  // Null: raw slabs only. Used by the thread of Pack, or by that of Verify.
  const std::unique_ptr<SlabCoder> coder_;
  const std::span<std::byte> arena_;
  ArenaStaging staging_;
};

// A slab that the coder does not support, or does not make smaller, stays raw.
void DeviceSlabMemory::Encode(const KvCodecSpec& codec, uint32_t sequence_blocks,
                              std::span<std::byte> slab, SlabHeader& header) {
  const auto used = coder_->Encode(codec, RunOfSlab(layout_, header, sequence_blocks), slab);
  PENSTOCK_CHECK(!absl::IsInternal(used.status()), "a GPU that fails has lost its pages");
  if (!used.ok() || *used == slab.size()) return;
  const auto crc = coder_->Checksum(slab.first(*used));
  PENSTOCK_CHECK(crc.ok(), "a GPU that fails has lost its pages");
  header.codec = SlabCodec::kEncoded;
  header.payload_bytes = static_cast<uint32_t>(*used);
  header.payload_crc = *crc;
}

absl::StatusOr<std::span<const std::byte>> DeviceSlabMemory::Verified(const LandedSlab& slab,
                                                                      uint32_t crc) {
  const std::span<const std::byte> payload(slab.data, slab.header.payload_bytes);
  RETURN_IF_ERROR(CheckPayload(slab.header, crc));
  if (slab.header.codec == SlabCodec::kRaw) return payload;
  const std::span<std::byte> raw(slab.data + RawAt(slab.header), slab.header.raw_bytes);
  RETURN_IF_ERROR(Decode(slab, payload, raw));
  return raw;
}

absl::Status DeviceSlabMemory::Decode(const LandedSlab& slab, std::span<const std::byte> payload,
                                      std::span<std::byte> raw) {
  PENSTOCK_CHECK(coder_ != nullptr, "an encoded slab landed in memory without a coder");
  ASSIGN_OR_RETURN(const KvCodecHeader encoded, coder_->ReadHeader(payload));
  const SlabDecoding how{.layout = layout_, .allowed = slab.codecs};
  RETURN_IF_ERROR(CheckCodec(how, slab.header, encoded.spec));
  return coder_->Decode(encoded.spec, RunOfSlab(layout_, slab.header, slab.sequence_blocks),
                        payload, raw);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlabMemory>> MakeDeviceSlabs(const KvLayout& layout,
                                                            DeviceSlabs& slabs, size_t budget_bytes,
                                                            std::unique_ptr<SlabCoder> coder) {
  std::byte* arena = slabs.Allocate(budget_bytes);
  if (arena == nullptr) {
    return ResourceExhausted("{} bytes of GPU memory for slabs cannot be allocated", budget_bytes);
  }
  return std::make_unique<DeviceSlabMemory>(layout, slabs, std::span(arena, budget_bytes),
                                            std::move(coder));
}

}  // namespace penstock
