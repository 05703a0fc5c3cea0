#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/wire/nccl/nccl_channel.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// Transfers a lane's large messages with NCCL, in pieces that pass through slots, of page-locked
// host memory or of GPU memory, whichever has the payload at this end. The receiver posts a
// receive, announces it over the lane's link, and only then the sender sends. NCCL therefore never
// writes into a message's destination, and a posted piece that never arrives does no harm. On the
// loop's thread.

// A piece of a message for which a receive is posted.
struct NcclPiece {
  uint64_t message = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// The common part of both ends.
class NcclHalf {
 public:
  // Ends the channel: no event follows. Pending operations are ended on the channel's thread.
  void Stop(bool failed) {
    pieces_.clear();
    channel_->Stop(failed);
  }
  void PeerStopped() { channel_->PeerStopped(); }

 protected:
  explicit NcclHalf(const NcclOptions& options);

  const size_t slot_bytes_;
  std::vector<size_t> free_;  // indices of free slots
  // The sender's queue of pieces that wait for a slot; the receiver's posted pieces.
  std::deque<NcclPiece> pieces_;
  std::unique_ptr<NcclChannel> channel_;
};

class NcclSending : public NcclHalf {
 public:
  struct Events {
    std::function<void(const std::string& id)> on_id;  // to be sent to the peer's NcclReceiving
    std::function<void()> on_ready;
    std::function<void(absl::Status)> on_failed;  // the caller must call Stop
    // The payload of a message that is being sent.
    std::function<WirePayload(uint64_t message)> payload;
  };

  NcclSending(NcclContext& context, Events events);

  // INVALID_ARGUMENT for a piece that no receiver can have requested. The payload must stay valid
  // until Waiting(message) is false.
  absl::Status Send(const NcclPiece& piece);
  bool Waiting(uint64_t message) const;
  // After Stop: NcclChannel::Read.
  void Read(std::span<const std::byte> from, NcclChannel::OnRead done) {
    channel_->Read(from, std::move(done));
  }

 private:
  void SendWaiting();

  const Events events_;
};

class NcclReceiving : public NcclHalf {
 public:
  struct Events {
    std::function<void(const NcclPiece&)> on_posted;  // the caller must tell the sender
    std::function<void(uint64_t message)> on_received;
    std::function<void(absl::Status)> on_failed;  // the caller must call Stop
  };

  NcclReceiving(NcclContext& context, const std::string& id, Events events);

  // May be called at any time; messages are received in order. Nothing is written to `target` after
  // on_received, or, if that was not called, after Stop in host memory and after WhenQuiet in GPU
  // memory.
  void Receive(uint64_t message, const WireTarget& target, size_t size);
  // After Stop: NcclChannel::WhenQuiet.
  void WhenQuiet(std::function<void()> call) { channel_->WhenQuiet(std::move(call)); }

 private:
  struct Message {
    uint64_t id = 0;
    WireTarget target;
    size_t size = 0;
    size_t posted = 0;
    size_t received = 0;
  };

  void PostNext();
  void OnMoved(size_t slot);

  const Events events_;
  bool ready_ = false;
  std::deque<Message> messages_;
  size_t announced_ = 0;  // number of pieces_ that the sender was told about
};

}  // namespace penstock
