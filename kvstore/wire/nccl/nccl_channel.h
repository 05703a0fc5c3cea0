#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kvstore/wire/loop.h"
#include "kvstore/wire/nccl/nccl_communicator.h"

namespace penstock {

// How a wire uses NCCL.
struct NcclOptions {
  std::string library = "libnccl.so.2";
  NcclTimes times;
  // Of each end of a lane: page-locked memory that pieces of messages pass through.
  size_t slot_bytes = size_t{2} << 20;
  size_t slots = 4;
};

// One end of a communicator as its wire sees it, with a thread of its own on which NCCL is called:
// that of the wire never waits for NCCL. On the loop's thread.
class NcclChannel {
 public:
  struct Events {
    // The sender's end has a name for the communicator, of nccl::UniqueId's size; whoever is given
    // it can open the receiver's.
    std::function<void(const std::string& id)> on_id;
    std::function<void()> on_ready;
    // The receiver's end: what was posted first of what has not been said yet is enqueued; from now
    // on the other end may send it.
    std::function<void(size_t slot)> on_posted;
    // The bytes are there, or have left: the slot is free.
    std::function<void(size_t slot)> on_moved;
    // Once, and the last of the events.
    std::function<void(absl::Status)> on_failed;
  };

  NcclChannel() = default;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  virtual ~NcclChannel() = default;  // As Stop(false) and PeerStopped.

  // From on_ready on, until Stop.
  virtual std::byte* slot(size_t index) = 0;
  // Sends, or receives, the first `bytes` of a slot that is free; from here on it is not.
  virtual void Post(size_t slot, size_t bytes) = 0;

  // Nothing is posted any more, and there are no more events. The communicator is ended when the
  // other end has stopped, too, or after NcclTimes::close: what is aborted while the peer still
  // posts leaves the peer with work that only its own deadline ends. `failed` as in
  // NcclCommunicator::Close; once it has been said, it stays.
  virtual void Stop(bool failed) = 0;
  virtual void PeerStopped() = 0;
};

// NCCL as a wire has it.
class NcclContext {
 public:
  // `loop` outlives it. FAILED_PRECONDITION says what is wrong with the library.
  static absl::StatusOr<std::unique_ptr<NcclContext>> Open(
      const NcclOptions& options, std::shared_ptr<const TransferDevice> device, WireLoop& loop);
  // Its channels are gone. Waits until they have ended, as long as NcclTimes allow; a thread that
  // NCCL does not give back is left behind, with its memory, and said in the log.
  virtual ~NcclContext() = default;

  virtual const std::string& version() const = 0;
  virtual const NcclOptions& options() const = 0;
  // On the loop's thread.
  virtual std::unique_ptr<NcclChannel> NewSender(NcclChannel::Events events) = 0;
  virtual std::unique_ptr<NcclChannel> NewReceiver(const std::string& id,
                                                   NcclChannel::Events events) = 0;
};

}  // namespace penstock
