#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kvstore/wire/gpu_copies.h"
#include "kvstore/wire/nccl/nccl_channel.h"

namespace penstock {

// The state shared by a channel, its thread and its context. It outlives them if NCCL never returns
// from a call.
struct NcclShared {
  struct Read {
    std::span<const std::byte> from;  // GPU memory
    NcclChannel::OnRead done;
  };

  // Constant.
  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<const TransferDevice> device;
  NcclOptions options;
  NcclEnd end = NcclEnd::kSender;
  std::string id;  // the receiver's

  // Used on the loop's thread only.
  NcclChannel::Events events;
  bool muted = false;

  // Used on the channel's thread until on_ready, then also on the loop's.
  std::vector<std::byte*> slots;      // page-locked host memory
  std::byte* device_slots = nullptr;  // as many in GPU memory, one after the other

  Mutex mutex;
  CondVar changed;
  WireLoop* loop GUARDED_BY(mutex) = nullptr;  // null once the loop may be gone
  std::deque<NcclChannel::Piece> pieces GUARDED_BY(mutex);
  bool stop GUARDED_BY(mutex) = false;
  bool failed GUARDED_BY(mutex) = false;
  bool peer_stopped GUARDED_BY(mutex) = false;
  std::deque<Read> reads GUARDED_BY(mutex);
  bool closed GUARDED_BY(mutex) = false;  // the channel is destroyed
  // True when no copy of the thread's writes outside the slots any more.
  bool quiet GUARDED_BY(mutex) = false;
  std::vector<WireLoop::Task> when_quiet GUARDED_BY(mutex);
  bool ended GUARDED_BY(mutex) = false;
};

// The code that runs on a channel's thread: all calls of NCCL, and the copies between GPU memory
// and slots. Copies have a stream of their own and are polled. They may be queued behind NCCL's
// kernels, which wait for the peer, so no thread ever waits for one without a time limit.
//
// A sender's piece is copied, then sent; a receiver's is received, then copied. Pieces in host
// memory pass through the same queues without a copy, so that all pieces stay in order.
class NcclThread {
 public:
  explicit NcclThread(std::shared_ptr<NcclShared> shared);
  void Run();

 private:
  using Piece = NcclChannel::Piece;
  struct Copying {
    Piece piece;
    GpuCopies::Copy copy = nullptr;  // null: the piece is in host memory
    TimePoint deadline;              // NcclTimes::move after its start
  };

  absl::Status Open();
  absl::Status AllocateSlots();
  absl::Status Serve();
  absl::StatusOr<std::optional<Piece>> NextPiece();
  absl::Status PostPiece(const Piece& piece);
  absl::Status TakeMoved();
  absl::Status StartCopy(const Piece& piece);
  absl::StatusOr<bool> CopyEnded(GpuCopies::Copy copy, TimePoint deadline);
  absl::Status TakeCopied();
  absl::Status OnCopied(const Piece& piece);
  bool WaitUntilBothStopped();
  void EndCopies();
  void ServeReads();
  std::optional<NcclShared::Read> NextRead();
  absl::StatusOr<std::vector<std::byte>> ReadToHost(std::span<const std::byte> from);
  absl::Status AwaitCopy(GpuCopies::Copy copy);
  void FreeSlots();

  bool sends() const { return shared_->end == NcclEnd::kSender; }
  std::byte* DeviceSlot(size_t index) const {
    return shared_->device_slots + index * shared_->options.slot_bytes;
  }

  const std::shared_ptr<NcclShared> shared_;
  NcclCommunicator communicator_;
  std::unique_ptr<GpuCopies> copies_;
  std::deque<Copying> copying_;  // in the order of their starts
  std::deque<Piece> posted_;     // in the order of posting
  // False when NCCL has not ended its operations, or the GPU a copy: slots and streams stay.
  bool over_ = true;
};

}  // namespace penstock
