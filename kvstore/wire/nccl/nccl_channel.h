#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvstore/wire/loop.h"
#include "kvstore/wire/nccl/nccl_communicator.h"

namespace penstock {

// This room wraps NCCL for one-way transfers between two processes: loading the library, a
// communicator of two ranks, and a thread for it. It knows the wire's loop, but not lanes, messages
// or slabs.

// The options of NCCL lanes.
struct NcclOptions {
  std::string library = "libnccl.so.2";
  NcclTimes times;
  // The pieces of messages pass through slots. Each end of a lane has `slots` of them in
  // page-locked host memory, and the same number in GPU memory.
  size_t slot_bytes = size_t{2} << 20;
  size_t slots = 4;
};

// One end of a communicator, used from the loop's thread. NCCL and the GPU are called on a thread
// of the channel's own, so the loop never waits for them.
class NcclChannel {
 public:
  // A piece of a message. One in host memory passes through slot(slot), which the caller fills
  // before Post, or empties after on_moved. One in GPU memory passes through that slot's
  // counterpart there, from and to which the channel copies.
  struct Piece {
    size_t slot = 0;
    size_t bytes = 0;                 // at most NcclOptions::slot_bytes
    const std::byte* from = nullptr;  // sender's end: the GPU memory that has it
    std::byte* to = nullptr;          // receiver's end: the GPU memory where it is to be
    bool on_device() const { return from != nullptr || to != nullptr; }
  };
  using OnRead = std::function<void(absl::StatusOr<std::vector<std::byte>> bytes)>;

  struct Events {
    // Sender's end: the communicator's id, of nccl::UniqueId's size. The peer opens the receiver's
    // end with it.
    std::function<void(const std::string& id)> on_id;
    std::function<void()> on_ready;
    // Receiver's end: the oldest unreported post is enqueued; the other end may send it now.
    std::function<void(size_t slot)> on_posted;
    // The bytes were sent, or have arrived: in host memory at slot(slot), in GPU memory where they
    // are to be. The slot is free when the event returns.
    std::function<void(size_t slot)> on_moved;
    // Called at most once, as the last event.
    std::function<void(absl::Status)> on_failed;
  };

  NcclChannel() = default;
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;
  virtual ~NcclChannel() = default;  // acts like Stop(false) and PeerStopped()

  // The host memory of a slot; valid from on_ready until Stop.
  virtual std::byte* slot(size_t index) = 0;
  // Sends or receives a piece by a free slot, which is in use until on_moved. After Stop, GPU
  // memory of a sender's piece may still be read, in vain; that of a receiver's piece may still be
  // written to until WhenQuiet.
  virtual void Post(const Piece& piece) = 0;

  // Stops posting; no event follows. The communicator is closed when the other end has stopped too,
  // or after NcclTimes::close: aborting while the peer still posts would leave the peer with
  // operations that only its own deadline ends. `failed` is as in NcclCommunicator::Close; once
  // true, it stays true.
  virtual void Stop(bool failed) = 0;
  virtual void PeerStopped() = 0;
  // After Stop: calls `call` on the loop's thread when no piece is copied to GPU memory any more.
  // This is within some NcclTimes::close, but if NCCL or the GPU never ends its work, when the
  // context is destroyed. Also called after the channel is destroyed.
  virtual void WhenQuiet(std::function<void()> call) = 0;
  // After Stop: copies GPU memory to host memory when the communicator has ended, and calls `done`
  // on the loop's thread, unless the channel is destroyed first. UNAVAILABLE or DEADLINE_EXCEEDED
  // if NCCL or the GPU does not end its work; `done` is not called while an abort does not return.
  virtual void Read(std::span<const std::byte> from, OnRead done) = 0;
};

// A wire's access to NCCL. On the loop's thread unless stated otherwise.
class NcclContext {
 public:
  // `loop` outlives the context. FAILED_PRECONDITION names the problem with the library.
  static absl::StatusOr<std::unique_ptr<NcclContext>> Open(
      const NcclOptions& options, std::shared_ptr<const TransferDevice> device, WireLoop& loop);
  // The channels must be destroyed before. Waits for their threads within NcclTimes; a thread that
  // NCCL does not return from is leaked with its memory and reported in the log.
  virtual ~NcclContext() = default;

  virtual const std::string& version() const = 0;
  virtual const NcclOptions& options() const = 0;
  // On the loop's thread.
  virtual std::unique_ptr<NcclChannel> NewSender(NcclChannel::Events events) = 0;
  virtual std::unique_ptr<NcclChannel> NewReceiver(const std::string& id,
                                                   NcclChannel::Events events) = 0;
};

}  // namespace penstock
