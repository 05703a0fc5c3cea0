#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kvstore/slab_memory.h"

namespace penstock {
namespace {

class DeviceSlabMemory final : public SlabMemory {
 public:
  DeviceSlabMemory(const KvLayout& layout, DeviceSlabs& slabs, std::span<std::byte> arena)
      : layout_(layout), slabs_(slabs), arena_(arena), staging_(arena) {}
  ~DeviceSlabMemory() override { slabs_.Free(arena_.data(), arena_.size()); }

  MemoryKind kind() const override { return MemoryKind::kDevice; }
  bool Takes(const KvCodecSpec& codec) const override { return codec == KvCodecSpec{}; }
  bool Fits(size_t bytes) const override {
    return bytes <= std::min(arena_.size(), slabs_.slab_bytes_max());
  }
  StagingBuffer Acquire(size_t bytes) override { return staging_.Acquire(bytes); }
  size_t used() const override { return staging_.used(); }
  size_t budget() const override { return arena_.size(); }

  void Pack(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> slab,
            SlabHeader& header) override {
    PENSTOCK_CHECK(Takes(codec));
    const DeviceSlabs::Pieces pieces = PiecesOf(header, source.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), slab.size());
    header.payload_crc = slabs_.Gather(pieces, slab.data());
  }

  void Verify(LandedSlab slab, OnVerified done) override {
    PENSTOCK_CHECK(slab.header.codec == SlabCodec::kRaw);
    const std::span<const std::byte> payload(slab.data, slab.header.payload_bytes);
    slabs_.Sum(payload, [header = slab.header, payload, done = std::move(done)](uint32_t crc) {
      const absl::Status status = CheckPayload(header, crc);
      if (status.ok()) return done(payload);
      done(status);
    });
  }

  void Write(const SlabWrite& write, std::function<void()> written) override {
    const DeviceSlabs::Pieces pieces = PiecesOf(write.header, write.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), write.raw.size());
    slabs_.Scatter(pieces, write.raw.data(), std::move(written));
  }
  void Drain() override { slabs_.Drain(); }

 private:
  DeviceSlabs::Pieces PiecesOf(const SlabHeader& header, std::span<const uint32_t> blocks) const {
    PENSTOCK_CHECK_LE(header.first_layer + header.layers, layout_.layers);
    PENSTOCK_CHECK_EQ(blocks.size(), header.blocks);
    return {.pages = blocks,
            .offset = header.first_layer * layout_.LayerBytes(),
            .bytes = header.layers * layout_.LayerBytes()};
  }

  const KvLayout layout_;
  DeviceSlabs& slabs_;
  const std::span<std::byte> arena_;
  ArenaStaging staging_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SlabMemory>> MakeDeviceSlabs(const KvLayout& layout,
                                                            DeviceSlabs& slabs,
                                                            size_t budget_bytes) {
  std::byte* arena = slabs.Allocate(budget_bytes);
  if (arena == nullptr) {
    return ResourceExhausted("{} bytes of the GPU's memory for slabs are not to be had",
                             budget_bytes);
  }
  return std::make_unique<DeviceSlabMemory>(layout, slabs, std::span(arena, budget_bytes));
}

}  // namespace penstock
