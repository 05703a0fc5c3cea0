#include "kvstore/wire/ucx/packets.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kvstore/wire/wire.h"

namespace penstock {
namespace {

constexpr int kPacketsPerTurn = 64;
constexpr size_t kAddressMax = 4096;
constexpr uint32_t kReadEvents = EPOLLIN | EPOLLRDHUP;

}  // namespace

void WirePacket::SetText(std::string_view value) {
  text_size = static_cast<uint32_t>(std::min(value.size(), text.size()));
  std::copy_n(value.begin(), text_size, text.begin());
}

void WirePacket::SetStatus(const absl::Status& status) {
  code = static_cast<uint32_t>(status.code());
  SetText(Message(status));
}

absl::Status WirePacket::Status() const {
  return absl::Status(static_cast<absl::StatusCode>(code), std::string(Text()));
}

absl::StatusOr<WirePacket> ParseWirePacket(std::span<const std::byte> bytes) {
  WirePacket packet;
  if (bytes.size() != sizeof(packet)) {
    return DataLoss("wire packet: {} bytes, must be {}", bytes.size(), sizeof(packet));
  }
  std::memcpy(&packet, bytes.data(), sizeof(packet));
  const auto kind = static_cast<uint32_t>(packet.kind);
  if (packet.magic != WirePacket::kMagic || kind < 1 || kind > 10) {
    return DataLoss("wire packet: magic {:#x}, kind {}", packet.magic, kind);
  }
  if (packet.text_size > packet.text.size() || packet.size > kWirePayloadMax) {
    return DataLoss("wire packet: text of {} bytes, payload of {}", packet.text_size, packet.size);
  }
  if (packet.kind == WirePacket::Kind::kAnnounce && packet.text_size > kWireHeaderMax) {
    return DataLoss("wire packet: header of {} bytes, the limit is {}", packet.text_size,
                    kWireHeaderMax);
  }
  return packet;
}

std::vector<WirePacket> SplitAddress(std::string_view address) {
  std::vector<WirePacket> pieces;
  for (size_t at = 0; at < address.size(); at += pieces.back().text_size) {
    WirePacket& piece = pieces.emplace_back();
    piece.kind = WirePacket::Kind::kAddress;
    piece.id = at;
    piece.size = address.size();
    piece.SetText(address.substr(at));
  }
  return pieces;
}

absl::Status AddressPieces::Add(const WirePacket& piece) {
  if (complete_ || piece.size > kAddressMax || piece.id != address_.size() ||
      piece.text_size == 0 || piece.id + piece.text_size > piece.size) {
    return DataLoss("wire packet: a piece of {} bytes at {} of an address of {}", piece.text_size,
                    piece.id, piece.size);
  }
  address_ += piece.Text();
  complete_ = address_.size() == piece.size;
  return absl::OkStatus();
}

PacketSocket::PacketSocket(WireLoop& loop, int fd) : loop_(loop), fd_(fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  PENSTOCK_CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size), 0);
  stream_ = type == SOCK_STREAM;
}

PacketSocket::~PacketSocket() {
  HangUp();
  close(fd_);
}

void PacketSocket::HangUp() {
  failed_ = true;
  outgoing_.clear();
  loop_.Unwatch(fd_);
  // Also closes the connection if a child process inherited the descriptor.
  shutdown(fd_, SHUT_RDWR);
}

absl::Status PacketSocket::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  return loop_.Watch(fd_, kReadEvents, [this](uint32_t events) { OnReady(events); });
}

void PacketSocket::Send(const WirePacket& packet) {
  if (failed_) return;
  outgoing_.push_back(packet);
  if (outgoing_.size() == 1) Flush();
}

bool PacketSocket::HungUp() const {
  pollfd entry{.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void PacketSocket::OnReady(uint32_t events) {
  if ((events & EPOLLOUT) != 0) Flush();
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Receive();
}

void PacketSocket::Receive() {
  for (int i = 0; i < kPacketsPerTurn && !failed_; ++i) {
    const size_t wanted = stream_ ? sizeof(WirePacket) : incoming_.size();
    const ssize_t size =
        recv(fd_, incoming_.data() + incoming_size_, wanted - incoming_size_, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      return Fail(Unavailable("the peer is gone ({})", size == 0 ? "closed" : strerror(errno)));
    }
    incoming_size_ += static_cast<size_t>(size);
    if (stream_ && incoming_size_ < sizeof(WirePacket)) continue;
    const auto packet = ParseWirePacket(std::span(incoming_).first(incoming_size_));
    incoming_size_ = 0;
    if (!packet.ok()) return Fail(packet.status());
    callbacks_.on_packet(*packet);
  }
}

void PacketSocket::Flush() {
  while (!failed_ && !outgoing_.empty()) {
    const auto rest = std::as_bytes(std::span(&outgoing_.front(), 1)).subspan(outgoing_sent_);
    const ssize_t sent = send(fd_, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return WatchWriting(true);
    if (sent < 0) {
      // Packets that the peer sent before closing are read first; reading then finds the end.
      outgoing_.clear();
      break;
    }
    outgoing_sent_ += static_cast<size_t>(sent);
    if (outgoing_sent_ < sizeof(WirePacket)) continue;
    outgoing_sent_ = 0;
    outgoing_.pop_front();
  }
  if (!failed_) WatchWriting(false);
}

void PacketSocket::WatchWriting(bool watch) {
  if (std::exchange(writing_, watch) == watch) return;
  loop_.Rewatch(fd_, watch ? kReadEvents | EPOLLOUT : kReadEvents);
}

void PacketSocket::Fail(absl::Status status) {
  if (std::exchange(failed_, true)) return;
  loop_.Unwatch(fd_);
  outgoing_.clear();
  callbacks_.on_closed(std::move(status));
}

}  // namespace penstock
