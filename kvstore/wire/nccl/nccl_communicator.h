#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kernels/transfer_device.h"
#include "kvstore/wire/nccl/nccl_library.h"

namespace penstock {

// Time limits; an operation that takes longer has failed.
struct NcclTimes {
  Duration open = std::chrono::seconds(30);
  Duration move = std::chrono::seconds(3);   // of one piece, from its post
  Duration close = std::chrono::seconds(2);  // of each step of closing
};

// The rank within the communicator. Bytes go from the sender to the receiver only.
enum class NcclEnd { kSender = 0, kReceiver = 1 };

// One end of a communicator of two ranks, with its own CUDA stream. It makes NCCL's calls in the
// order that NCCL requires. No call blocks longer than NcclTimes, as far as NCCL's non-blocking
// communicators end in time; the destruction of one may block anyway. One thread, which has
// selected the device.
class NcclCommunicator {
 public:
  struct Parts {
    const NcclLibrary& library;
    const TransferDevice& device;
    NcclTimes times;
    // Waits briefly between two polls of NCCL. False: abandon all operations that can be abandoned.
    std::function<bool()> pause;
  };

  explicit NcclCommunicator(Parts parts) : parts_(std::move(parts)) {}
  ~NcclCommunicator();  // CHECKs that Close was called
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // The id that both ends pass to Open. It names an address on which this process listens.
  absl::StatusOr<nccl::UniqueId> NewId();
  // Returns when both ends are connected. DEADLINE_EXCEEDED, CANCELLED, or NCCL's error.
  absl::Status Open(const nccl::UniqueId& id, NcclEnd end);
  // Enqueues the send or receive of `bytes` at `data`, which NCCL uses until TakeMoved reports it.
  absl::Status Post(std::byte* data, size_t bytes);
  size_t posted() const { return posted_.size(); }
  // True when the oldest posted operation has ended; it is then removed from the posted ones.
  absl::StatusOr<bool> TakeMoved();

  // Closes the communicator: destroys it when everything has ended or NCCL can revoke the rest,
  // else aborts it. `failed` means that the other end has failed and need not answer. False: NCCL
  // may access the posted buffers for the rest of the process's life.
  bool Close(bool failed);

 private:
  struct Posted {
    void* event = nullptr;
    TimePoint deadline;
  };

  static TimePoint Now() { return std::chrono::steady_clock::now(); }
  enum class Stoppable { kNo, kYes };
  absl::Status Settle(nccl::Result result, std::string_view what, Duration limit, Stoppable);
  absl::Status Enqueue(std::byte* data, size_t bytes);
  absl::Status Fail(absl::Status status);
  void WaitForSends();
  absl::Status EndPending();  // called before destruction
  absl::StatusOr<void*> TakeEvent();

  const Parts parts_;
  const nccl::Functions& calls_ = parts_.library.calls();
  NcclEnd end_ = NcclEnd::kSender;
  nccl::Comm* comm_ = nullptr;
  void* stream_ = nullptr;
  bool opened_ = false;
  bool failed_ = false;
  std::deque<Posted> posted_;
  std::vector<void*> idle_events_;
};

}  // namespace penstock
