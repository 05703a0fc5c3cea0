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

// The longest that each may take before it counts as failed.
struct NcclTimes {
  Duration open = std::chrono::seconds(30);
  Duration move = std::chrono::seconds(3);   // of one piece, from when it was posted
  Duration close = std::chrono::seconds(2);  // each step of it
};

// Which rank of the two one is. Bytes go one way.
enum class NcclEnd { kSender = 0, kReceiver = 1 };

// One end of a communicator of two ranks, with a stream of its own: NCCL's calls in the order that
// NCCL wants them. Nothing blocks longer than NcclTimes allow, as far as NCCL keeps its promise of
// non-blocking communicators; destroying one may block in any case. All on one thread, which has
// Selected the device.
class NcclCommunicator {
 public:
  struct Parts {
    const NcclLibrary& library;
    const TransferDevice& device;
    NcclTimes times;
    // Waits a little, between two looks at what NCCL is doing. False: give up what can be given up.
    std::function<bool()> pause;
  };

  explicit NcclCommunicator(Parts parts) : parts_(std::move(parts)) {}
  ~NcclCommunicator();  // CHECKs that it was closed.
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // What the other end needs to Open. It names a place where this process listens.
  absl::StatusOr<nccl::UniqueId> NewId();
  // Returns when both ends are there. DEADLINE_EXCEEDED, CANCELLED, or NCCL's own words.
  absl::Status Open(const nccl::UniqueId& id, NcclEnd end);
  // Enqueues sending, or receiving, `bytes` at `data`, which are NCCL's until TakeMoved says so.
  absl::Status Post(std::byte* data, size_t bytes);
  size_t posted() const { return posted_.size(); }
  // True: the first of what was posted is over, and is posted no more.
  absl::StatusOr<bool> TakeMoved();

  // Ends it: destroyed when all is over or NCCL can revoke what is not, else aborted. `failed`: so
  // has the other end, which need not answer. False: NCCL may still touch what was posted, for
  // good.
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
  void AwaitSent();
  absl::Status Quieten();  // before it is destroyed
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
