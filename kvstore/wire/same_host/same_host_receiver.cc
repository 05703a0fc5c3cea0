#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <optional>

#include "base/check.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/listener.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/same_host/same_host.h"

namespace penstock {
namespace {

constexpr size_t kConnectionsMax = 256;
// Limit of messages that one peer has announced and that are unread; far above any
// WireLimits::messages.
constexpr size_t kWaitingMax = 65536;
// Bytes copied in one turn: small enough that other lanes, tasks and closed peers are served in
// between.
constexpr size_t kChunkBytes = size_t{2} << 20;

// Copies `size` bytes at `address` of process `pid` to `target`.
absl::Status ReadPeer(pid_t pid, uint64_t address, std::byte* target, size_t size) {
  const iovec local{.iov_base = target, .iov_len = size};
  const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = size};
  const ssize_t copied = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (copied == static_cast<ssize_t>(size)) return absl::OkStatus();
  return Unavailable("reading the memory of process {}: {}", pid,
                     copied < 0 ? std::strerror(errno) : "part of it is gone");
}

// A peer that sends to this wire.
class Connection {
 public:
  Connection(WireLoop& loop, WireReceiver& receiver, int fd, pid_t pid)
      : receiver_(receiver), pid_(pid), socket_(loop, MakePlainSocket(fd)) {}
  ~Connection() { LoseCurrent(); }

  absl::Status Start(std::function<void()> on_closed) {
    on_closed_ = std::move(on_closed);
    return socket_.Start({.on_packet = [this](const WirePacket& packet) { OnPacket(packet); },
                          .on_closed = [this](const absl::Status&) { Break(); }});
  }

  bool ready() const { return !broken_ && (current_.has_value() || !waiting_.empty()); }
  // Copies one chunk of the current message.
  void Progress();

 private:
  struct Landing {
    WirePacket packet;
    std::byte* target;
    size_t copied;
  };

  void OnPacket(const WirePacket& packet);
  void Greet(const WirePacket& hello);
  bool Begin(const WirePacket& packet);
  void Finish();
  void LoseCurrent();
  void Break();
  void SendEnded(uint64_t id, const absl::Status& status);

  WireReceiver& receiver_;
  const pid_t pid_;
  PacketSocket socket_;
  std::function<void()> on_closed_;
  bool greeted_ = false;
  bool broken_ = false;
  std::deque<WirePacket> waiting_;
  std::optional<Landing> current_;
};

void Connection::OnPacket(const WirePacket& packet) {
  if (broken_) return;
  if (!greeted_ && packet.kind == WirePacket::Kind::kHello) return Greet(packet);
  if (!greeted_ || packet.kind != WirePacket::Kind::kAnnounce || waiting_.size() >= kWaitingMax) {
    return Break();
  }
  waiting_.push_back(packet);
}

// The peer names an address in its memory and the value there, and this process reads it. The
// attempt is the only reliable test: reading fails across users, process namespaces and some
// sandboxes.
void Connection::Greet(const WirePacket& hello) {
  uint64_t probe = 0;
  absl::Status status =
      ReadPeer(pid_, hello.address, reinterpret_cast<std::byte*>(&probe), sizeof(probe));
  if (status.ok() && probe != hello.id) {
    status = Unavailable("process {} is not the one that connected", pid_);
  }
  greeted_ = status.ok();
  WirePacket welcome{.kind = WirePacket::Kind::kWelcome};
  welcome.SetStatus(status);
  socket_.Send(welcome);
}

void Connection::Progress() {
  if (!current_) {
    const WirePacket packet = waiting_.front();
    waiting_.pop_front();
    if (!Begin(packet)) return;
  }
  Landing& landing = *current_;
  const size_t chunk = std::min<size_t>(landing.packet.size - landing.copied, kChunkBytes);
  absl::Status status;
  if (chunk > 0) {
    status = ReadPeer(pid_, landing.packet.address + landing.copied,
                      landing.target + landing.copied, chunk);
  }
  // A peer that cancels a message closes its end before it reuses the buffer. If its end is still
  // open after the copy, the copied bytes are the message's.
  if (!status.ok() || socket_.HungUp()) return Break();
  landing.copied += chunk;
  if (landing.copied == landing.packet.size) Finish();
}

bool Connection::Begin(const WirePacket& packet) {
  const auto target = receiver_.OnAnnounced(packet.TextBytes(), packet.size);
  if (!target.ok()) {
    SendEnded(packet.id, Unavailable("refused by the peer: {}", Message(target.status())));
    return false;
  }
  current_ = Landing{.packet = packet, .target = *target, .copied = 0};
  return true;
}

void Connection::Finish() {
  const Landing landed = *current_;
  current_.reset();
  receiver_.OnLanded(landed.packet.TextBytes(), std::span(landed.target, landed.packet.size));
  SendEnded(landed.packet.id, absl::OkStatus());
}

void Connection::LoseCurrent() {
  if (!current_) return;
  const Landing lost = *current_;
  current_.reset();
  receiver_.OnLost(lost.packet.TextBytes(), lost.target);
}

void Connection::Break() {
  if (broken_) return;
  broken_ = true;
  waiting_.clear();
  LoseCurrent();
  on_closed_();
}

void Connection::SendEnded(uint64_t id, const absl::Status& status) {
  WirePacket packet{.kind = WirePacket::Kind::kEnded, .id = id};
  packet.SetStatus(status);
  socket_.Send(packet);
}

class ReceiverImpl final : public SameHostReceiver, public WireLoop::Source {
 public:
  ReceiverImpl(WireLoop& loop, WireReceiver& receiver, std::string name)
      : loop_(loop), receiver_(receiver), name_(std::move(name)) {
    loop_.AddSource(this);
  }
  ~ReceiverImpl() override {
    PENSTOCK_CHECK(loop_.OnThread());
    loop_.RemoveSource(this);
  }

  // Takes ownership of `fd`, which listens.
  absl::Status Start(int fd) {
    ASSIGN_OR_RETURN(listener_,
                     WireListener::Create(loop_, fd, [this](int accepted) { Admit(accepted); }));
    return absl::OkStatus();
  }

  const std::string& name() const override { return name_; }

  bool Progress() override {
    connections_.remove_if([](const Entry& entry) { return entry.closed; });
    bool worked = false;
    for (Entry& entry : connections_) {
      if (!entry.connection->ready()) continue;
      entry.connection->Progress();
      worked = true;
    }
    return worked;
  }

  bool Arm() override {
    return std::none_of(connections_.begin(), connections_.end(), [](const Entry& entry) {
      return entry.closed || entry.connection->ready();
    });
  }

 private:
  struct Entry {
    std::unique_ptr<Connection> connection;
    // Destroyed later, in Progress, because a connection must not die in its own callback.
    bool closed = false;
  };

  void Admit(int fd);

  WireLoop& loop_;
  WireReceiver& receiver_;
  const std::string name_;
  std::unique_ptr<WireListener> listener_;
  std::list<Entry> connections_;
};

void ReceiverImpl::Admit(int fd) {
  const auto peer = SocketPeer(fd);
  if (!peer || peer->uid != geteuid() || peer->pid == 0 || connections_.size() >= kConnectionsMax) {
    close(fd);
    return;
  }
  Entry& entry = connections_.emplace_back();
  entry.connection = std::make_unique<Connection>(loop_, receiver_, fd, peer->pid);
  const auto started = entry.connection->Start([&entry] { entry.closed = true; });
  if (!started.ok()) entry.closed = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SameHostReceiver>> ListenOnSameHost(WireLoop& loop,
                                                                   WireReceiver& receiver) {
  std::string name = "penstock-wire-" + RandomName();
  ASSIGN_OR_RETURN(const int fd, ListenAbstract(name));
  auto side = std::make_unique<ReceiverImpl>(loop, receiver, std::move(name));
  RETURN_IF_ERROR(side->Start(fd));
  return side;
}

}  // namespace penstock
