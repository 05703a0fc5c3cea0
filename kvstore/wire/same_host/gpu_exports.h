#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>

#include "kernels/transfer_device.h"
#include "kvstore/wire/net/wire_packet.h"

namespace penstock {

// Limit of GPU allocations that one lane names to its peer. A sender has two: DeviceProbe's and the
// arena of its slabs.
inline constexpr uint32_t kExportsMax = 16;

// The sender's GPU memory as one lane's peer knows it: numbered from 1 on. On the loop's thread.
class GpuExports {
 public:
  // `send` takes the packets that name memory to the peer.
  GpuExports(std::shared_ptr<const TransferDevice> gpu, std::function<void(const WirePacket&)> send)
      : gpu_(std::move(gpu)), send_(std::move(send)) {}

  // Sets `packet.code` and `packet.address` to the place of `payload`, and names its allocation to
  // the peer first if the peer does not know it. UNAVAILABLE if it cannot be exported;
  // RESOURCE_EXHAUSTED beyond kExportsMax.
  absl::Status Place(std::span<const std::byte> payload, WirePacket& packet);

 private:
  const std::shared_ptr<const TransferDevice> gpu_;
  const std::function<void(const WirePacket&)> send_;
  std::map<uint64_t, uint32_t> numbers_;  // by ExportedMemory::number
};

}  // namespace penstock
