#include "kvstore/handoff/slab_memory.h"

#include <utility>

#include "base/crc32c.h"
#include "kvstore/handoff/slab_packer.h"

namespace penstock {
namespace {

// Decoders load whole vectors.
size_t AlignedUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

class HostSlabs final : public SlabMemory {
 public:
  HostSlabs(const PagedKv& pages, HostSlabOptions options)
      : pages_(pages),
        options_(std::move(options)),
        staging_(options_.budget_bytes),
        packer_(pages, options_.calibration) {}

  MemoryKind kind() const override { return MemoryKind::kHost; }
  bool Takes(const KvCodecSpec&, size_t) const override { return true; }
  bool Fits(size_t) const override { return true; }
  StagingBuffer Acquire(size_t bytes) override { return staging_.Acquire(bytes); }
  size_t used() const override { return staging_.used(); }
  size_t budget() const override { return options_.budget_bytes; }

  void Pack(std::span<const SlabPacking> slabs) override {
    for (const SlabPacking& one : slabs) {
      packer_.Pack(one.codec, one.source, one.slab, *one.header);
    }
  }
  size_t packed_at_once() const override { return 1; }
  void Verify(LandedSlab slab, OnVerified done) override { done(Verified(slab)); }
  void Write(const SlabWrite& write, std::function<void()> written) override {
    if (options_.writer) return options_.writer(write, std::move(written));
    ScatterSlab(pages_, write.header, write.blocks, write.raw);
    written();
  }
  void Drain() override {}

 private:
  absl::StatusOr<std::span<const std::byte>> Verified(const LandedSlab& slab) const;

  const PagedKv pages_;
  const HostSlabOptions options_;
  HandoffStaging staging_;
  SlabPacker packer_;
};

absl::StatusOr<std::span<const std::byte>> HostSlabs::Verified(const LandedSlab& slab) const {
  const SlabHeader& header = slab.header;
  const std::span<const std::byte> payload(slab.data, header.payload_bytes);
  RETURN_IF_ERROR(CheckPayload(header, Crc32c(payload)));
  if (header.codec == SlabCodec::kRaw) return payload;
  const std::span<std::byte> raw(slab.data + RawAt(header), header.raw_bytes);
  RETURN_IF_ERROR(DecodeSlab({.layout = pages_.layout,
                              .allowed = slab.codecs,
                              .sequence_blocks = slab.sequence_blocks,
                              .calibration = options_.calibration},
                             header, payload, raw));
  return raw;
}

}  // namespace

size_t SlabMemory::RawAt(const SlabHeader& header) { return AlignedUp(header.payload_bytes); }

size_t SlabMemory::BytesToLand(const SlabHeader& header) {
  return header.codec == SlabCodec::kRaw ? header.payload_bytes : RawAt(header) + header.raw_bytes;
}

std::unique_ptr<SlabMemory> MakeHostSlabs(PagedKv pages, HostSlabOptions options) {
  return std::make_unique<HostSlabs>(pages, std::move(options));
}

}  // namespace penstock
