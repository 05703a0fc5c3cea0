#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kvstore/handoff/slab_memory.h"

namespace penstock {
namespace {

// An arena of slabs in GPU memory, with its mirror in page-locked host memory if there is room for
// that, and the GPU's work on them. All slabs here are spans of the arena.
class GpuArena {
 public:
  GpuArena(const KvLayout& layout, DeviceSlabs& slabs, std::span<std::byte> arena,
           std::unique_ptr<SlabCoder> coder)
      : layout_(layout),
        slabs_(slabs),
        coder_(std::move(coder)),
        arena_(arena),
        mirror_(slabs.AllocatePinned(arena.size())),
        staging_(arena, mirror_) {}
  ~GpuArena() {
    if (mirror_ != nullptr) slabs_.FreePinned(mirror_, arena_.size());
    slabs_.Free(arena_.data(), arena_.size());
  }
  GpuArena(const GpuArena&) = delete;
  GpuArena& operator=(const GpuArena&) = delete;

  bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const {
    if (codec.codec == KvCodec::kRaw) return true;
    return coder_ != nullptr && coder_->Takes(codec, raw_bytes);
  }
  bool Fits(size_t bytes) const {
    return bytes <= std::min(arena_.size(), slabs_.slab_bytes_max());
  }
  DeviceSlabs& slabs() const { return slabs_; }
  ArenaStaging& staging() { return staging_; }
  const ArenaStaging& staging() const { return staging_; }
  bool mirrored() const { return mirror_ != nullptr; }

  // As SlabMemory::Pack; with a copy of each payload at the same place of the mirror if `mirrored`.
  void Pack(std::span<const SlabPacking> slabs, bool mirrored);
  // The raw bytes of a landed slab whose payload has the checksum `crc`.
  absl::StatusOr<std::span<const std::byte>> Verified(const LandedSlab& slab, uint32_t crc);
  DeviceSlabs::Pieces PiecesOf(const SlabHeader& header, std::span<const uint32_t> blocks) const {
    PENSTOCK_CHECK_LE(header.first_layer + header.layers, layout_.layers);
    PENSTOCK_CHECK_EQ(blocks.size(), header.blocks);
    return {
        .pages = blocks,
        .offset = layout_.BytesBefore(header.first_layer),
        .bytes = layout_.BytesOf(header.first_layer, header.first_layer + int32_t{header.layers})};
  }

 private:
  void Encode(const SlabPacking& packing);
  absl::Status Decode(const LandedSlab& slab, std::span<const std::byte> payload,
                      std::span<std::byte> raw);

  const KvLayout layout_;
  DeviceSlabs& slabs_;
  // Null: raw slabs only. Used by the thread of Pack, or by that of Verify.
  const std::unique_ptr<SlabCoder> coder_;
  const std::span<std::byte> arena_;
  std::byte* const mirror_;  // null: there is none
  ArenaStaging staging_;
};

// A raw slab is copied to the mirror as it is gathered, an encoded one afterwards.
void GpuArena::Pack(std::span<const SlabPacking> slabs, bool mirrored) {
  std::vector<DeviceSlabs::Gathering> gathered;
  for (const SlabPacking& one : slabs) {
    PENSTOCK_CHECK(Takes(one.codec, one.slab.size()));
    const DeviceSlabs::Pieces pieces = PiecesOf(*one.header, one.source.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), one.slab.size());
    const bool copied = mirrored && one.codec.codec == KvCodec::kRaw;
    gathered.push_back({.pieces = pieces,
                        .slab = one.slab.data(),
                        .pinned = copied ? staging_.ArenaToMirror(one.slab.data()) : nullptr});
  }
  slabs_.Gather(gathered);
  for (size_t i = 0; i < slabs.size(); ++i) {
    const SlabPacking& one = slabs[i];
    one.header->payload_crc = gathered[i].crc;
    if (one.codec.codec == KvCodec::kRaw) continue;
    Encode(one);
    if (mirrored) {
      slabs_.ReadSlab(one.slab.first(one.header->payload_bytes),
                      staging_.ArenaToMirror(one.slab.data()));
    }
  }
}

// A slab that the coder does not support, or does not make smaller, stays raw.
void GpuArena::Encode(const SlabPacking& packing) {
  SlabHeader& header = *packing.header;
  const auto used = coder_->Encode(
      packing.codec, RunOfSlab(layout_, header, packing.source.sequence_blocks), packing.slab);
  PENSTOCK_CHECK(!absl::IsInternal(used.status()), "a GPU that fails has lost its pages");
  if (!used.ok() || *used == packing.slab.size()) return;
  const auto crc = coder_->Checksum(packing.slab.first(*used));
  PENSTOCK_CHECK(crc.ok(), "a GPU that fails has lost its pages");
  header.codec = SlabCodec::kEncoded;
  header.payload_bytes = static_cast<uint32_t>(*used);
  header.payload_crc = *crc;
}

absl::StatusOr<std::span<const std::byte>> GpuArena::Verified(const LandedSlab& slab,
                                                              uint32_t crc) {
  const std::span<const std::byte> payload(slab.data, slab.header.payload_bytes);
  RETURN_IF_ERROR(CheckPayload(slab.header, crc));
  if (slab.header.codec == SlabCodec::kRaw) return payload;
  const size_t raw_at = SlabMemory::BytesToLand(slab.header) - slab.header.raw_bytes;
  const std::span<std::byte> raw(slab.data + raw_at, slab.header.raw_bytes);
  RETURN_IF_ERROR(Decode(slab, payload, raw));
  return raw;
}

absl::Status GpuArena::Decode(const LandedSlab& slab, std::span<const std::byte> payload,
                              std::span<std::byte> raw) {
  PENSTOCK_CHECK(coder_ != nullptr, "an encoded slab landed in memory without a coder");
  ASSIGN_OR_RETURN(const KvCodecHeader encoded, coder_->ReadHeader(payload));
  const SlabDecoding how{.layout = layout_, .allowed = slab.codecs};
  RETURN_IF_ERROR(CheckCodec(how, slab.header, encoded.spec));
  return coder_->Decode(encoded.spec, RunOfSlab(layout_, slab.header, slab.sequence_blocks),
                        payload, raw);
}

// Slabs in the arena, for lanes that reach GPU memory.
class DeviceSlabMemory final : public SlabMemory {
 public:
  explicit DeviceSlabMemory(std::shared_ptr<GpuArena> arena) : arena_(std::move(arena)) {}

  MemoryKind kind() const override { return MemoryKind::kDevice; }
  bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const override {
    return arena_->Takes(codec, raw_bytes);
  }
  bool Fits(size_t bytes) const override { return arena_->Fits(bytes); }
  StagingBuffer Acquire(size_t bytes) override { return arena_->staging().Acquire(bytes); }
  size_t used() const override { return arena_->staging().used(); }
  size_t budget() const override { return arena_->staging().size(); }

  void Pack(std::span<const SlabPacking> slabs) override {
    arena_->Pack(slabs, /*mirrored=*/false);
  }
  size_t packed_at_once() const override { return arena_->slabs().gathered_at_once(); }
  void Verify(LandedSlab slab, OnVerified done) override {
    const std::span<const std::byte> payload(slab.data, slab.header.payload_bytes);
    arena_->slabs().Sum(
        payload, [arena = arena_.get(), slab = std::move(slab),
                  done = std::move(done)](uint32_t crc) { done(arena->Verified(slab, crc)); });
  }
  void Write(const SlabWrite& write, std::function<void()> written) override {
    const DeviceSlabs::Pieces pieces = arena_->PiecesOf(write.header, write.blocks);
    PENSTOCK_CHECK_EQ(pieces.total(), write.raw.size());
    arena_->slabs().Scatter(pieces, write.raw.data(), std::move(written));
  }
  void Drain() override { arena_->slabs().Drain(); }

 private:
  const std::shared_ptr<GpuArena> arena_;  // also of the mirror's slabs
};

// Slabs in the arena's mirror, for all other lanes. The CPU does not read them.
class MirroredSlabMemory final : public SlabMemory {
 public:
  explicit MirroredSlabMemory(std::shared_ptr<GpuArena> arena)
      : arena_(std::move(arena)), device_(arena_) {}

  MemoryKind kind() const override { return MemoryKind::kHost; }
  bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const override {
    return device_.Takes(codec, raw_bytes);
  }
  bool Fits(size_t bytes) const override { return device_.Fits(bytes); }
  StagingBuffer Acquire(size_t bytes) override { return arena_->staging().AcquireMirrored(bytes); }
  size_t used() const override { return device_.used(); }
  size_t budget() const override { return device_.budget(); }

  void Pack(std::span<const SlabPacking> slabs) override {
    std::vector<SlabPacking> on_gpu(slabs.begin(), slabs.end());
    for (SlabPacking& one : on_gpu) {
      one.slab = {arena_->staging().MirrorToArena(one.slab.data()), one.slab.size()};
    }
    arena_->Pack(on_gpu, /*mirrored=*/true);
  }
  size_t packed_at_once() const override { return device_.packed_at_once(); }
  void Verify(LandedSlab slab, OnVerified done) override {
    const std::byte* const pinned = slab.data;
    slab.data = arena_->staging().MirrorToArena(slab.data);
    const std::span<std::byte> payload(slab.data, slab.header.payload_bytes);
    arena_->slabs().SumFromHost(
        pinned, payload,
        [arena = arena_.get(), slab = std::move(slab), done = std::move(done)](uint32_t crc) {
          done(arena->Verified(slab, crc));
        });
  }
  // The raw bytes are on the GPU.
  void Write(const SlabWrite& write, std::function<void()> written) override {
    device_.Write(write, std::move(written));
  }
  void Drain() override { device_.Drain(); }

 private:
  const std::shared_ptr<GpuArena> arena_;  // also of the GPU's slabs
  DeviceSlabMemory device_;
};

}  // namespace

absl::StatusOr<GpuSlabMemories> MakeGpuSlabs(const KvLayout& layout, DeviceSlabs& slabs,
                                             size_t budget_bytes,
                                             std::unique_ptr<SlabCoder> coder) {
  std::byte* memory = slabs.Allocate(budget_bytes);
  if (memory == nullptr) {
    return ResourceExhausted("{} bytes of GPU memory for slabs cannot be allocated", budget_bytes);
  }
  const auto arena =
      std::make_shared<GpuArena>(layout, slabs, std::span(memory, budget_bytes), std::move(coder));
  GpuSlabMemories memories{.device = std::make_unique<DeviceSlabMemory>(arena)};
  if (arena->mirrored()) memories.mirrored = std::make_unique<MirroredSlabMemory>(arena);
  return memories;
}

}  // namespace penstock
