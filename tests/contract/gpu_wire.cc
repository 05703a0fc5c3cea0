#include "tests/contract/gpu_wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "tests/contract/wire_support.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

// An arena of the GPU's memory, of which pieces are taken and given back. Never freed.
class Arena {
 public:
  std::byte* Take(size_t payload_bytes) {
    const size_t bytes = std::max<size_t>(payload_bytes, 1);
    MutexLock lock(mutex_);
    size_t at = 0;
    for (const auto& [offset, size] : used_) {
      if (offset - at >= bytes) break;
      at = offset + size;
    }
    PENSTOCK_CHECK_LE(at + bytes, kBytes);
    used_[at] = bytes;
    return data_ + at;
  }
  void GiveBack(std::byte* data) {
    MutexLock lock(mutex_);
    const auto found = used_.find(static_cast<size_t>(data - data_));
    PENSTOCK_CHECK(found != used_.end());
    std::memset(cuda::emulator::SeenByHardware(data), 0xee, found->second);
    used_.erase(found);
  }

 private:
  static constexpr size_t kBytes = size_t{96} << 20;
  std::byte* const data_ = EmulatedGpu()->AllocateForWires(kBytes);
  Mutex mutex_;
  std::map<size_t, size_t> used_ GUARDED_BY(mutex_);  // sizes by offset
};
Arena& Outgoing() {
  static auto* arena = new Arena();
  return *arena;
}
Arena& Incoming() {
  static auto* arena = new Arena();
  return *arena;
}

class GpuReceiver final : public WireReceiver {
 public:
  GpuReceiver(WireReceiver& user, bool may_use_host) : user_(user), may_use_host_(may_use_host) {}

  // An empty payload is in no memory.
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header, size_t size) override {
    EXPECT_TRUE(size == 0 || may_use_host_) << "a message in host memory";
    return user_.OnAnnounced(header, size);
  }
  absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                 size_t size) override {
    ASSIGN_OR_RETURN(std::byte* const place, user_.OnAnnounced(header, size));
    std::byte* const target = Incoming().Take(size);
    places_[target] = place;
    return WireTarget{.data = target, .memory = MemoryKind::kDevice};
  }
  void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) override {
    if (!places_.contains(payload.data())) return user_.OnLanded(header, payload);
    std::byte* const place = places_.extract(payload.data()).mapped();
    std::memcpy(place, cuda::emulator::SeenByHardware(payload.data()), payload.size());
    Incoming().GiveBack(payload.data());
    user_.OnLanded(header, {place, payload.size()});
  }
  void OnLost(std::span<const std::byte> header, std::byte* target) override {
    if (!places_.contains(target)) return user_.OnLost(header, target);
    Incoming().GiveBack(target);
    user_.OnLost(header, places_.extract(target).mapped());
  }

 private:
  WireReceiver& user_;
  const bool may_use_host_;
  std::map<std::byte*, std::byte*> places_;  // the user's, by the GPU's; on the wire's thread
};

class GpuLane final : public WireLane {
 public:
  explicit GpuLane(std::unique_ptr<WireLane> lane) : lane_(std::move(lane)) {}

  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    RETURN_IF_ERROR(CheckPutSizes(header.size(), payload.size()));
    std::byte* const data = Outgoing().Take(payload.size());
    std::ranges::copy(payload, cuda::emulator::SeenByHardware(data));
    absl::Status put = lane_->PutFromDevice(header, {data, payload.size()},
                                            [data, done = std::move(done)](const auto& end) {
                                              Outgoing().GiveBack(data);
                                              done(end);
                                            });
    if (!put.ok()) Outgoing().GiveBack(data);
    return put;
  }
  std::string transport() const override {
    return lane_->transport() + (lane_->TakesDeviceMemory() ? ", from GPU memory" : "");
  }

 private:
  const std::unique_ptr<WireLane> lane_;
};

class GpuWire final : public Wire {
 public:
  // A lane whose NCCL fails, as when the peer dies, uses host memory from then on.
  GpuWire(WireReceiver& user, bool nccl) : receiver_(user, /*may_use_host=*/nccl) {}
  absl::Status Open(HostWireOptions options) {
    const bool nccl = options.lanes == "nccl";
    (nccl ? options.gpu : options.same_host_gpu) = EmulatedGpu();
    ASSIGN_OR_RETURN(wire_, MakeHostWire(options, receiver_));
    if (nccl) wire_ = Elsewhere(std::move(wire_));
    return absl::OkStatus();
  }
  std::string address() const override { return wire_->address(); }
  // Gives the lane out once it takes the GPU's memory.
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override {
    ASSIGN_OR_RETURN(auto lane, wire_->Connect(address, timeout_ms));
    EXPECT_TRUE(WaitUntil([&] { return lane->TakesDeviceMemory(); }));
    return std::make_unique<GpuLane>(std::move(lane));
  }

 private:
  GpuReceiver receiver_;
  std::unique_ptr<Wire> wire_;
};

}  // namespace

std::unique_ptr<Wire> MakeGpuWire(WireReceiver& receiver, HostWireOptions options) {
  auto wire = std::make_unique<GpuWire>(receiver, options.lanes == "nccl");
  const absl::Status opened = wire->Open(std::move(options));
  EXPECT_TRUE(opened.ok()) << opened;
  return wire;
}

}  // namespace penstock
