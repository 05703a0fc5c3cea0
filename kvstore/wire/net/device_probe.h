#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/transfer_device.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// A known pattern, as large as the largest slabs, that is sent over a lane once before payloads use
// GPU memory. Its intact arrival proves that library, cards and drivers support that path. One for
// each kind of lanes of a wire; on its loop's thread.
class DeviceProbe {
 public:
  static constexpr size_t kBytes = size_t{4} << 20;

  // Buffers are in `gpu`'s memory, or in host memory when it is null. RESOURCE_EXHAUSTED when
  // allocation fails.
  static absl::StatusOr<std::unique_ptr<DeviceProbe>> Make(
      std::shared_ptr<const TransferDevice> gpu);
  ~DeviceProbe();
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;

  // The pattern to send, to any number of peers.
  WirePayload source();

  // Waits for the only target buffer: calls `run` with it, at once or after earlier users called
  // Finish. `who` identifies the user.
  void Await(const void* who, std::function<void(const WireTarget& target)> run);
  // Compares the target with the pattern: DATA_LOSS when they differ. Blocks while the GPU copies
  // the target, then clears it.
  absl::Status Check();
  // Releases the target, or cancels the wait for it.
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
  std::byte* pinned_ = nullptr;  // only with a GPU
  std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  // Without a GPU; also with one as soon as a peer has none. Holds source and target.
  std::vector<std::byte> host_;
  std::deque<Waiting> waiting_;  // the first of them has the target
};

}  // namespace penstock
