#include "kvstore/wire/net/packet_socket.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr int kPacketsPerTurn = 64;
constexpr uint32_t kReadEvents = EPOLLIN | EPOLLRDHUP;

}  // namespace

PacketSocket::PacketSocket(WireLoop& loop, std::unique_ptr<Socket> socket)
    : loop_(loop), socket_(std::move(socket)) {
  int type = 0;
  socklen_t size = sizeof(type);
  PENSTOCK_CHECK_EQ(getsockopt(socket_->fd(), SOL_SOCKET, SO_TYPE, &type, &size), 0);
  stream_ = type == SOCK_STREAM;
}

PacketSocket::~PacketSocket() { HangUp(); }

void PacketSocket::HangUp() {
  failed_ = true;
  outgoing_.clear();
  loop_.Unwatch(socket_->fd());
  // Also closes the connection if a child process inherited the descriptor.
  shutdown(socket_->fd(), SHUT_RDWR);
}

absl::Status PacketSocket::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  return loop_.Watch(socket_->fd(), kReadEvents, [this](uint32_t) { OnReady(); });
}

void PacketSocket::Send(const WirePacket& packet) {
  if (failed_) return;
  outgoing_.push_back(packet);
  if (outgoing_.size() > 1) return;
  Flush();
  WatchAsNeeded();
}

bool PacketSocket::HungUp() const {
  pollfd entry{.fd = socket_->fd(), .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// TLS may have to read before it can write, and the reverse, so both are tried.
void PacketSocket::OnReady() {
  Flush();
  Receive();
  if (!failed_ && !outgoing_.empty()) Flush();
  WatchAsNeeded();
}

// A stream is read until nothing is left, because epoll does not report what TLS has decrypted.
void PacketSocket::Receive() {
  for (int i = 0; !failed_ && (stream_ || i < kPacketsPerTurn); ++i) {
    const size_t wanted = stream_ ? sizeof(WirePacket) : incoming_.size();
    const Socket::Result result =
        socket_->Read(std::span(incoming_).subspan(incoming_size_, wanted - incoming_size_));
    if (result.kind == Socket::Result::Kind::kWouldBlock) return;
    if (result.kind != Socket::Result::Kind::kBytes) {
      const bool ended = result.kind == Socket::Result::Kind::kEnd;
      return Fail(Unavailable("the peer is gone ({})", ended ? "closed" : socket_->trouble()));
    }
    incoming_size_ += result.bytes;
    if (stream_ && incoming_size_ < sizeof(WirePacket)) continue;
    const auto packet = ParseWirePacket(std::as_bytes(std::span(incoming_).first(incoming_size_)));
    incoming_size_ = 0;
    if (!packet.ok()) return Fail(packet.status());
    callbacks_.on_packet(*packet);
  }
}

void PacketSocket::Flush() {
  while (!failed_ && !outgoing_.empty()) {
    const char* const bytes = reinterpret_cast<const char*>(&outgoing_.front());
    const Socket::Result result =
        socket_->Write({bytes + outgoing_sent_, sizeof(WirePacket) - outgoing_sent_});
    if (result.kind == Socket::Result::Kind::kWouldBlock) return;
    if (result.kind != Socket::Result::Kind::kBytes) {
      // Packets that the peer sent before closing are read first; reading then finds the end.
      outgoing_.clear();
      return;
    }
    outgoing_sent_ += result.bytes;
    if (outgoing_sent_ < sizeof(WirePacket)) continue;
    outgoing_sent_ = 0;
    outgoing_.pop_front();
  }
}

void PacketSocket::WatchAsNeeded() {
  if (failed_) return;
  const bool watch =
      (!outgoing_.empty() && !socket_->write_waits_for_read()) || socket_->read_waits_for_write();
  if (std::exchange(writing_, watch) == watch) return;
  loop_.Rewatch(socket_->fd(), watch ? kReadEvents | EPOLLOUT : kReadEvents);
}

void PacketSocket::Fail(absl::Status status) {
  if (std::exchange(failed_, true)) return;
  loop_.Unwatch(socket_->fd());
  outgoing_.clear();
  callbacks_.on_closed(std::move(status));
}

}  // namespace penstock
