#include "worker/events/kv_event_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <utility>

namespace penstock {
namespace {

// What one peer may give and take before others have their turn.
constexpr int kReadsAtOnce = 4;
constexpr uint64_t kNoMoreBatches = UINT64_MAX;  // -1, as in vLLM

void SendAtOnce(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
}

}  // namespace

KvEventConnection::KvEventConnection(const Parts& parts, int fd, std::function<void()> on_closed)
    : parts_(parts),
      socket_(MakePlainSocket(fd)),
      on_closed_(std::move(on_closed)),
      opened_(parts.loop.now()),
      progress_(opened_) {
  SendAtOnce(fd);
}

KvEventConnection::~KvEventConnection() {
  if (subscriber_) parts_.metrics.subscribers.Decrement();
}

void KvEventConnection::Greet() {
  Queue(std::make_shared<const std::string>(peer_.TakeOutput()));
  Pump();
}

void KvEventConnection::Publish(const std::shared_ptr<const std::string>& message) {
  if (closed_ || !peer_.Subscribes(parts_.topic)) return;
  if (queued_ > 0 && queued_ + message->size() > kQueuedBytesMax) {
    return parts_.metrics.dropped.Increment();
  }
  Queue(message);
  Pump();
}

void KvEventConnection::OnReady(uint32_t events) {
  if ((events & ~EPOLLOUT) != 0 && !ReadSome()) return;
  if ((events & EPOLLOUT) != 0) SetBlocked(false);
  Pump();
}

bool KvEventConnection::ReadSome() {
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const Socket::Result read = socket_->Read(parts_.loop.scratch());
    if (read.kind == Socket::Result::Kind::kWouldBlock) return true;
    if (read.kind != Socket::Result::Kind::kBytes) {
      Close();
      return false;
    }
    if (!OnBytes({parts_.loop.scratch().data(), read.bytes})) return false;
  }
  return true;
}

bool KvEventConnection::OnBytes(std::string_view bytes) {
  const absl::Status taken = peer_.Take(bytes);
  Queue(std::make_shared<const std::string>(peer_.TakeOutput()));
  // A peer that asks for more than it reads, e.g. with pings.
  if (!taken.ok() || queued_ > 2 * kQueuedBytesMax) {
    Refuse();
    return false;
  }
  if (!subscriber_ && peer_.kind() == ZmtpPeer::Kind::kSubscriber) {
    subscriber_ = true;
    parts_.metrics.subscribers.Increment();
  }
  return true;
}

void KvEventConnection::Queue(std::shared_ptr<const std::string> bytes) {
  if (bytes->empty()) return;
  if (queue_.empty()) progress_ = parts_.loop.now();
  queued_ += bytes->size();
  queue_.push_back(std::move(bytes));
}

void KvEventConnection::Pump() {
  while (!closed_ && !blocked_ && (!queue_.empty() || QueueReply())) {
    if (!WriteSome()) return;
  }
}

// Queues one batch of the request in work, or the end of the answer. Earlier output is sent first,
// so that an answer takes no more memory than its largest batch.
bool KvEventConnection::QueueReply() {
  if (!replay_) {
    const std::optional<uint64_t> first = peer_.TakeRequest();
    if (!first) return false;
    replay_ = {.next = *first, .end = parts_.log.next()};
  }
  const KvEventLog::Batch* const batch = parts_.log.Find(replay_->next);
  const bool more = batch != nullptr && batch->sequence < replay_->end;
  std::string reply;
  AppendZmtpFrame(reply, "", /*more=*/true);
  AppendZmtpSequence(reply, more ? batch->sequence : kNoMoreBatches, /*more=*/true);
  AppendZmtpFrame(reply, more ? std::string_view(*batch->payload) : "", /*more=*/false);
  Queue(std::make_shared<const std::string>(std::move(reply)));
  if (more) {
    replay_->next = batch->sequence + 1;
  } else {
    replay_.reset();
    parts_.metrics.replays.Increment();
  }
  return true;
}

bool KvEventConnection::WriteSome() {
  const Socket::Result result = socket_->Write(std::string_view(*queue_.front()).substr(sent_));
  if (result.kind == Socket::Result::Kind::kWouldBlock) {
    SetBlocked(true);
    return false;
  }
  if (result.kind != Socket::Result::Kind::kBytes) {
    Close();
    return false;
  }
  progress_ = parts_.loop.now();
  sent_ += result.bytes;
  if (sent_ == queue_.front()->size()) {
    queued_ -= sent_;
    sent_ = 0;
    queue_.pop_front();
  }
  return true;
}

void KvEventConnection::SetBlocked(bool blocked) {
  if (std::exchange(blocked_, blocked) == blocked) return;
  parts_.loop.Modify(fd(), blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void KvEventConnection::OnTick(TimePoint now) {
  const bool silent = !ready() && now - opened_ > kHandshakeMax;
  const bool stalled = !queue_.empty() && now - progress_ > kStallMax;
  if (silent || stalled) Refuse();
}

void KvEventConnection::Refuse() {
  if (closed_) return;
  parts_.metrics.refused.Increment();
  Close();
}

// The descriptor is closed when the last holder has gone, so no call here finds another's.
void KvEventConnection::Close() {
  if (std::exchange(closed_, true)) return;
  parts_.loop.Remove(fd());
  on_closed_();
}

}  // namespace penstock
