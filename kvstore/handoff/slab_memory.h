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

// Pages that a slab is packed from.
struct SlabSource {
  std::span<const uint32_t> blocks;  // [i] is the page of the slab's i-th block
  uint32_t sequence_blocks = 0;      // of the whole sequence
};

// A slab that has landed.
struct LandedSlab {
  SlabHeader header;
  std::byte* data = nullptr;             // SlabMemory::BytesToLand of it; the payload comes first
  std::vector<KvCodecSpec> codecs = {};  // of an encoded one: what it may be
  uint32_t sequence_blocks = 0;          // likewise
};

// One verified slab on its way into pages.
struct SlabWrite {
  SlabHeader header{};
  std::span<const std::byte> raw{};  // header.raw_bytes, where Verify put them
  std::vector<uint32_t> blocks{};    // page numbers, one for each of the header's blocks
};
// Writes a slab into pages and calls `written`, at once or later and on any thread. The pages and
// the slab stay until then.
using SlabWriter = std::function<void(const SlabWrite& write, std::function<void()> written)>;

// Where slabs are between pages and wire, and all that is done to their bytes there: nobody else
// knows whether a pointer to one is the host's. Of one end of a worker's handoffs. Any thread, but
// for Pack.
class SlabMemory {
 public:
  using OnVerified = std::function<void(absl::StatusOr<std::span<const std::byte>> raw)>;

  virtual ~SlabMemory() = default;
  virtual MemoryKind kind() const = 0;
  // Whether it packs, or verifies, slabs of this codec that have so many bytes without it.
  virtual bool Takes(const KvCodecSpec& codec, size_t raw_bytes) const = 0;
  // Whether it may have a buffer of so many at all.
  virtual bool Fits(size_t bytes) const = 0;

  // Empty when the budget does not allow it now. Buffers are gone before the memory is.
  virtual StagingBuffer Acquire(size_t bytes) = 0;
  virtual size_t used() const = 0;    // bytes
  virtual size_t budget() const = 0;  // bytes

  // Packs pages into `slab` (header.raw_bytes), encoded where that makes them smaller, and says so
  // in the header: codec, payload_bytes and payload_crc. Returns when that is done. One thread.
  virtual void Pack(const KvCodecSpec& codec, const SlabSource& source, std::span<std::byte> slab,
                    SlabHeader& header) = 0;

  // A landed slab's raw bytes, or DATA_LOSS when they are damaged, FAILED_PRECONDITION for a codec
  // that it may not have. At once or later, on any thread; the slab stays until then.
  virtual void Verify(LandedSlab slab, OnVerified done) = 0;
  virtual void Write(const SlabWrite& write, std::function<void()> written) = 0;
  // Until all that Verify and Write have begun is over.
  virtual void Drain() = 0;

  // What a landing slab needs: encoded, room behind the payload to decode into.
  static size_t BytesToLand(const SlabHeader& header);

 protected:
  static size_t RawAt(const SlabHeader& header);  // of an encoded slab
};

struct HostSlabOptions {
  size_t budget_bytes = 0;
  const KvCalibration* calibration = nullptr;  // null: no codec that needs one is asked for
  SlabWriter writer = {};                      // empty: copied at once
};
// In the host's memory. `options.calibration` outlives it. Verify and Write are over when they
// return, unless the writer says otherwise: whoever gives one waits for it.
std::unique_ptr<SlabMemory> MakeHostSlabs(PagedKv pages, HostSlabOptions options);

// In the memory of the GPU that has the pages: `budget_bytes` of it, taken now. Without a coder,
// raw slabs only. RESOURCE_EXHAUSTED. `slabs` outlives it.
absl::StatusOr<std::unique_ptr<SlabMemory>> MakeDeviceSlabs(const KvLayout& layout,
                                                            DeviceSlabs& slabs, size_t budget_bytes,
                                                            std::unique_ptr<SlabCoder> coder = {});

}  // namespace penstock
