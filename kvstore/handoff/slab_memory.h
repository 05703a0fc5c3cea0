#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device_slabs.h"
#include "kvstore/codec/slab_coder.h"
#include "kvstore/handoff/handoff_slabs.h"
#include "kvstore/handoff/handoff_staging.h"

namespace penstock {

// The pages from which a slab is packed.
struct SlabSource {
  std::span<const uint32_t> blocks;  // [i] is the page of the slab's i-th block
  uint32_t sequence_blocks = 0;      // of the whole sequence
};

// One slab to be packed.
struct SlabPacking {
  KvCodecSpec codec;
  SlabSource source;
  std::span<std::byte> slab;     // header->raw_bytes
  SlabHeader* header = nullptr;  // codec, payload_bytes and payload_crc are set
};

// A slab that has landed.
struct LandedSlab {
  SlabHeader header;
  std::byte* data = nullptr;             // SlabMemory::BytesToLand bytes; the payload comes first
  std::vector<KvCodecSpec> codecs = {};  // codecs that an encoded slab may use
  uint32_t sequence_blocks = 0;          // of the whole sequence
};

// One verified slab to be written into pages.
struct SlabWrite {
  SlabHeader header{};
  std::span<const std::byte> raw{};  // header.raw_bytes, at the place given by Verify
  std::vector<uint32_t> blocks{};    // page numbers, one for each of the header's blocks
};
// Writes a slab into pages and calls `written`, at once or later and on any thread. Pages and slab
// stay valid until then.
using SlabWriter = std::function<void(const SlabWrite& write, std::function<void()> written)>;

// The memory that holds slabs between pages and wire, and all operations on their bytes; no other
// code needs to know whether a slab is in host or GPU memory. One object for each end of a worker's
// handoffs. Any thread, except Pack.
class SlabMemory {
 public:
  using OnVerified = std::function<void(absl::StatusOr<std::span<const std::byte>> raw)>;

  virtual ~SlabMemory() = default;
  virtual MemoryKind kind() const = 0;
  // True when it can pack or verify slabs of `raw_bytes` with this codec.
  virtual bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const = 0;
  // True when a buffer of `bytes` can ever be allocated.
  virtual bool Fits(size_t bytes) const = 0;

  // Empty when the budget is used up now. Buffers must be destroyed before the memory.
  virtual StagingBuffer Acquire(size_t bytes) = 0;
  virtual size_t used() const = 0;    // bytes
  virtual size_t budget() const = 0;  // bytes

  // Packs pages into slabs, encoded where that makes them smaller. Returns when all are packed: up
  // to packed_at_once() take little longer than one. One thread at a time.
  virtual void Pack(std::span<const SlabPacking> slabs) = 0;
  virtual size_t packed_at_once() const = 0;

  // Calls `done` with the slab's raw bytes, DATA_LOSS when they are damaged, or FAILED_PRECONDITION
  // for a codec that is not allowed; at once or later, on any thread. The slab stays valid until
  // then.
  virtual void Verify(LandedSlab slab, OnVerified done) = 0;
  virtual void Write(const SlabWrite& write, std::function<void()> written) = 0;
  // Waits until all started Verify and Write calls have ended.
  virtual void Drain() = 0;

  // The bytes needed by a landing slab; for an encoded one they include room to decode into.
  static size_t BytesToLand(const SlabHeader& header);

 protected:
  static size_t RawAt(const SlabHeader& header);  // offset of the raw bytes of an encoded slab
};

struct HostSlabOptions {
  size_t budget_bytes = 0;
  // Null: codecs that need a calibration are never requested.
  const KvCalibration* calibration = nullptr;
  SlabWriter writer = {};  // empty: slabs are copied at once
};
// Slabs in host memory. `options.calibration` outlives it. Verify and Write end before they return,
// except that a given writer may end later: its provider waits for it.
std::unique_ptr<SlabMemory> MakeHostSlabs(PagedKv pages, HostSlabOptions options);

// Slabs that the GPU which has the pages packs, verifies and writes. Both memories share one budget
// and one set of operations: used(), budget() and Drain() concern both.
struct GpuSlabMemories {
  std::unique_ptr<SlabMemory> device;  // in its memory
  // In page-locked host memory, from and to which the GPU copies; null if there is no room for it.
  std::unique_ptr<SlabMemory> mirrored;
};
// `budget_bytes` of GPU memory are allocated now, and as much of the host's. Without a coder, raw
// slabs only. RESOURCE_EXHAUSTED when allocation fails. `slabs` outlives them.
absl::StatusOr<GpuSlabMemories> MakeGpuSlabs(const KvLayout& layout, DeviceSlabs& slabs,
                                             size_t budget_bytes,
                                             std::unique_ptr<SlabCoder> coder = {});

}  // namespace penstock
