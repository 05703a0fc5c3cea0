#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/wire/nccl/nccl_channel.h"

namespace penstock {

// The bulk of a lane's messages by NCCL, in pieces that pass through slots of page-locked memory:
// the receiver posts, says so over the lane's UCX link, and only then does the sender send. So NCCL
// never writes where a receiver said a message shall land, and a piece that was posted and never
// came harms nobody. On the loop's thread.

// A piece of a message whose receive is posted.
struct NcclPiece {
  uint64_t message = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// What both ends have.
class NcclHalf {
 public:
  // No event follows. What is under way is ended on the channel's thread.
  void Stop(bool failed) {
    pieces_.clear();
    channel_->Stop(failed);
  }
  void PeerStopped() { channel_->PeerStopped(); }

 protected:
  explicit NcclHalf(const NcclOptions& options);

  const size_t slot_bytes_;
  std::vector<size_t> free_;  // slots
  // The sender's wait for a slot, the receiver's are posted.
  std::deque<NcclPiece> pieces_;
  std::unique_ptr<NcclChannel> channel_;
};

class NcclSending : public NcclHalf {
 public:
  struct Events {
    std::function<void(const std::string& id)> on_id;  // for the peer's NcclReceiving
    std::function<void()> on_ready;
    std::function<void(absl::Status)> on_failed;  // Stop it.
    // What is being sent.
    std::function<std::span<const std::byte>(uint64_t message)> payload;
  };

  NcclSending(NcclContext& context, Events events);

  // INVALID_ARGUMENT for what no receiver asks for. The payload stays until no piece of its message
  // is Waiting.
  absl::Status Send(const NcclPiece& piece);
  bool Waiting(uint64_t message) const;

 private:
  void SendWaiting();

  const Events events_;
};

class NcclReceiving : public NcclHalf {
 public:
  struct Events {
    std::function<void(const NcclPiece&)> on_posted;  // Tell the sender.
    std::function<void(uint64_t message)> on_received;
    std::function<void(absl::Status)> on_failed;  // Stop it.
  };

  NcclReceiving(NcclContext& context, const std::string& id, Events events);

  // At any time; one after the other. Nothing is written to `target` after on_received, or Stop.
  void Receive(uint64_t message, std::byte* target, size_t size);

 private:
  struct Message {
    uint64_t id = 0;
    std::byte* target = nullptr;
    size_t size = 0;
    size_t posted = 0;
    size_t received = 0;
  };

  void PostNext();
  void OnMoved(size_t slot);

  const Events events_;
  bool ready_ = false;
  std::deque<Message> messages_;
  size_t told_ = 0;  // of pieces_: the sender knows
};

}  // namespace penstock
