#include "kvstore/wire/host/nccl_halves.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// Far above a receiver's number of slots.
constexpr size_t kWaitingHalvesMax = 4096;

}  // namespace

NcclHalf::NcclHalf(const NcclOptions& options) : slot_bytes_(options.slot_bytes) {
  free_.resize(options.slots);
  std::iota(free_.begin(), free_.end(), size_t{0});
}

NcclSending::NcclSending(NcclContext& context, Events events)
    : NcclHalf(context.options()), events_(std::move(events)) {
  channel_ = context.NewSender({.on_id = events_.on_id,
                                .on_ready = events_.on_ready,
                                .on_posted = [](size_t) {},
                                .on_moved =
                                    [this](size_t slot) {
                                      free_.push_back(slot);
                                      SendWaiting();
                                    },
                                .on_failed = events_.on_failed});
}

absl::Status NcclSending::Send(const NcclPiece& piece) {
  const size_t size = events_.payload(piece.message).bytes.size();
  if (pieces_.size() >= kWaitingHalvesMax || piece.size == 0 || piece.size > slot_bytes_ ||
      piece.offset > size || piece.size > size - piece.offset) {
    return InvalidArgument("a piece of {} bytes at {} of a message of {}", piece.size, piece.offset,
                           size);
  }
  pieces_.push_back(piece);
  SendWaiting();
  return absl::OkStatus();
}

bool NcclSending::Waiting(uint64_t message) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const NcclPiece& piece) { return piece.message == message; });
}

void NcclSending::SendWaiting() {
  while (!pieces_.empty() && !free_.empty()) {
    const NcclPiece piece = pieces_.front();
    pieces_.pop_front();
    const size_t slot = free_.back();
    free_.pop_back();
    const WirePayload payload = events_.payload(piece.message);
    const std::byte* const from = payload.bytes.data() + piece.offset;
    const bool on_device = payload.memory == MemoryKind::kDevice;
    if (!on_device) std::memcpy(channel_->slot(slot), from, piece.size);
    channel_->Post({.slot = slot, .bytes = piece.size, .from = on_device ? from : nullptr});
  }
}

NcclReceiving::NcclReceiving(NcclContext& context, const std::string& id, Events events)
    : NcclHalf(context.options()), events_(std::move(events)) {
  channel_ = context.NewReceiver(
      id, {.on_id = nullptr,
           .on_ready =
               [this] {
                 ready_ = true;
                 PostNext();
               },
           .on_posted = [this](size_t) { events_.on_posted(pieces_[announced_++]); },
           .on_moved = [this](size_t slot) { OnMoved(slot); },
           .on_failed = events_.on_failed});
}

void NcclReceiving::Receive(uint64_t message, const WireTarget& target, size_t size) {
  PENSTOCK_CHECK_GT(size, 0u);
  messages_.push_back({.id = message, .target = target, .size = size});
  PostNext();
}

void NcclReceiving::PostNext() {
  if (!ready_) return;
  for (Message& message : messages_) {
    while (message.posted < message.size) {
      if (free_.empty()) return;
      const size_t bytes = std::min(slot_bytes_, message.size - message.posted);
      const size_t slot = free_.back();
      free_.pop_back();
      pieces_.push_back({.message = message.id, .offset = message.posted, .size = bytes});
      const bool on_device = message.target.memory == MemoryKind::kDevice;
      channel_->Post({.slot = slot,
                      .bytes = bytes,
                      .to = on_device ? message.target.data + message.posted : nullptr});
      message.posted += bytes;
    }
  }
}

// The moved piece is the one posted first, so it belongs to the first message.
void NcclReceiving::OnMoved(size_t slot) {
  PENSTOCK_CHECK(!messages_.empty() && announced_ > 0);
  const NcclPiece piece = pieces_.front();
  pieces_.pop_front();
  --announced_;
  Message& message = messages_.front();
  if (message.target.memory == MemoryKind::kHost) {
    std::memcpy(message.target.data + piece.offset, channel_->slot(slot), piece.size);
  }
  message.received += piece.size;
  free_.push_back(slot);
  const bool whole = message.received == message.size;
  if (whole) messages_.pop_front();
  PostNext();
  if (whole) events_.on_received(piece.message);
}

}  // namespace penstock
