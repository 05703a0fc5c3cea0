#pragma once

#include <memory>
#include <vector>

#include "kernels/transfer_device.h"
#include "kvstore/wire/net/wire_packet.h"

namespace penstock {

// A peer's GPU memory, mapped for this process's GPU until this object is destroyed. On the loop's
// thread.
class GpuImports {
 public:
  explicit GpuImports(std::shared_ptr<const TransferDevice> gpu) : gpu_(std::move(gpu)) {}
  ~GpuImports();
  GpuImports(const GpuImports&) = delete;
  GpuImports& operator=(const GpuImports&) = delete;

  // Maps the memory that a kExport names. DATA_LOSS when the packet is invalid; UNAVAILABLE, also
  // from Find later, when this GPU does not reach the memory.
  absl::Status Add(const WirePacket& packet);
  // The bytes that an announcement or a probe places. DATA_LOSS when they are not within memory
  // that the peer has named.
  absl::StatusOr<const std::byte*> Find(const WirePacket& packet) const;

 private:
  struct Memory {
    std::byte* data = nullptr;
    size_t bytes = 0;
    absl::Status status;
  };
  const std::shared_ptr<const TransferDevice> gpu_;
  std::vector<Memory> memories_;  // the first has number 1
};

}  // namespace penstock
