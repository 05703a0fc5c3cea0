#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/transfer_device.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// What goes over a lane once before payloads do from, or to, a GPU's memory: bytes that both ends
// know, as many as the largest slabs have. Whether it came whole tells whether library, cards and
// drivers do what they say. Of one wire; on its loop's thread.
class DeviceProbe {
 public:
  static constexpr size_t kBytes = size_t{4} << 20;

  // In `gpu`'s memory, or in the host's where that is null. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<DeviceProbe>> Make(
      std::shared_ptr<const TransferDevice> gpu);
  ~DeviceProbe();
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;

  // To be sent, to any number of peers.
  WirePayload source();

  // There is one target: `run` is called with it, at once or when those before have said Finish.
  // `who` tells them apart.
  void Await(const void* who, std::function<void(const WireTarget& target)> run);
  // What has come: DATA_LOSS when it is not what was sent. Blocks while the GPU copies it. Clears
  // the target.
  absl::Status Check();
  // Its target is free, or it does not want it any more.
  void Finish(const void* who);

 private:
  explicit DeviceProbe(std::shared_ptr<const TransferDevice> gpu) : gpu_(std::move(gpu)) {}
  struct Waiting {
    const void* who;
    std::function<void(const WireTarget& target)> run;
  };
  absl::Status Allocate();
  void AllocateOnHost();
  WireTarget target();
  MemoryKind memory() const { return gpu_ == nullptr ? MemoryKind::kHost : MemoryKind::kDevice; }

  const std::shared_ptr<const TransferDevice> gpu_;
  void* stream_ = nullptr;
  std::byte* pinned_ = nullptr;  // with a GPU
  std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::vector<std::byte> host_;  // without, and once a peer has one: both
  std::deque<Waiting> waiting_;  // the first of them has the target
};

}  // namespace penstock
