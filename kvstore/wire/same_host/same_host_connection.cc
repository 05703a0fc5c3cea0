#include "kvstore/wire/same_host/same_host_connection.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvstore/wire/net/socket.h"

namespace penstock {
namespace {

// Limit of messages that one peer has announced and that are unread; far above any
// WireLimits::messages.
constexpr size_t kWaitingMax = 65536;
// Bytes copied in one turn: small enough that other lanes, tasks and closed peers are served in
// between.
constexpr size_t kChunkBytes = size_t{2} << 20;
// Messages that the GPU copies at a time, so that it does not wait for the thread in between.
constexpr size_t kCopyingMax = 16;

// Copies `size` bytes at `address` of process `pid` to `target`.
absl::Status ReadPeer(pid_t pid, uint64_t address, std::byte* target, size_t size) {
  const iovec local{.iov_base = target, .iov_len = size};
  const iovec remote{.iov_base = reinterpret_cast<void*>(address), .iov_len = size};
  const ssize_t copied = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (copied == static_cast<ssize_t>(size)) return absl::OkStatus();
  return Unavailable("reading the memory of process {}: {}", pid,
                     copied < 0 ? std::strerror(errno) : "part of it is gone");
}

}  // namespace

SameHostConnection::SameHostConnection(const Shared& shared, int fd, pid_t pid)
    : shared_(shared), pid_(pid), socket_(shared.loop, MakePlainSocket(fd)) {
  if (shared.copies != nullptr) imports_.emplace(shared.copies->gpu());
}

SameHostConnection::~SameHostConnection() { LoseAll(); }

absl::Status SameHostConnection::Start(std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  return socket_.Start({.on_packet = [this](const WirePacket& packet) { OnPacket(packet); },
                        .on_closed = [this](const absl::Status&) { Break(); }});
}

void SameHostConnection::OnPacket(const WirePacket& packet) {
  if (broken_) return;
  if (!greeted_ && packet.kind == WirePacket::Kind::kHello) return Greet(packet);
  if (!greeted_) return Break();
  if (packet.kind != WirePacket::Kind::kAnnounce) {
    if (!OnGpuPacket(packet)) Break();
    return;
  }
  if (waiting_.size() >= kWaitingMax) return Break();
  waiting_.push_back(packet);
}

// The peer names an address in its memory and the value there, and this process reads it. The
// attempt is the only reliable test: reading fails across users, process namespaces and some
// sandboxes.
void SameHostConnection::Greet(const WirePacket& hello) {
  uint64_t probe = 0;
  absl::Status status =
      ReadPeer(pid_, hello.address, reinterpret_cast<std::byte*>(&probe), sizeof(probe));
  if (status.ok() && probe != hello.id) {
    status = Unavailable("process {} is not the one that connected", pid_);
  }
  greeted_ = status.ok();
  const auto memory =
      shared_.copies == nullptr ? WirePacket::Memory::kHost : WirePacket::Memory::kDevice;
  WirePacket welcome{.kind = WirePacket::Kind::kWelcome, .id = static_cast<uint64_t>(memory)};
  welcome.SetStatus(status);
  socket_.Send(welcome);
}

void SameHostConnection::Progress() {
  if (!TakeCopied()) return;
  if (current_) return CopyChunk();
  if (!waiting_.empty() && copying_.size() < kCopyingMax) BeginNext();
}

void SameHostConnection::BeginNext() {
  Landing landing{.packet = waiting_.front()};
  waiting_.pop_front();
  const WirePacket& packet = landing.packet;
  if (packet.code != 0) {
    const auto source = imports_ ? imports_->Find(packet) : DataLoss("no GPU");
    if (absl::IsDataLoss(source.status())) return Break();
    if (!source.ok()) return SendEnded(packet.id, source.status());
    landing.on_gpu = *source;
  }
  const auto target = Announce(packet);
  if (!target.ok()) {
    return SendEnded(packet.id, Unavailable("refused by the peer: {}", Message(target.status())));
  }
  landing.target = *target;
  if (landing.target.memory == MemoryKind::kHost) {
    current_ = landing;
  } else if (!StartCopy(landing)) {
    shared_.receiver.OnLost(landing.packet.TextBytes(), landing.target.data);
  }
}

// The CPU cannot write into GPU memory.
absl::StatusOr<WireTarget> SameHostConnection::Announce(const WirePacket& packet) {
  if (packet.code != 0) {
    return shared_.receiver.OnAnnouncedAnywhere(packet.TextBytes(), packet.size);
  }
  ASSIGN_OR_RETURN(std::byte* const target,
                   shared_.receiver.OnAnnounced(packet.TextBytes(), packet.size));
  return WireTarget{.data = target};
}

void SameHostConnection::CopyChunk() {
  Landing& landing = *current_;
  const size_t chunk = std::min<size_t>(landing.packet.size - landing.copied, kChunkBytes);
  std::byte* const target = landing.target.data + landing.copied;
  absl::Status status;
  if (chunk > 0 && landing.on_gpu != nullptr) {
    status = shared_.copies->ToHost(target, landing.on_gpu + landing.copied, chunk);
  } else if (chunk > 0) {
    status = ReadPeer(pid_, landing.packet.address + landing.copied, target, chunk);
  }
  // A peer that cancels a message closes its end before it reuses the buffer. If its end is still
  // open after the copy, the copied bytes are the message's.
  if (!status.ok() || socket_.HungUp()) return Break();
  landing.copied += chunk;
  if (landing.copied == landing.packet.size) Finish(*std::exchange(current_, std::nullopt));
}

void SameHostConnection::Finish(const Landing& landed) {
  shared_.receiver.OnLanded(landed.packet.TextBytes(),
                            std::span(landed.target.data, landed.packet.size));
  SendEnded(landed.packet.id, absl::OkStatus());
}

// The receiver may reuse a lost message's target at once, so the GPU must have finished writing.
void SameHostConnection::LoseAll() {
  for (const Copying& one : copying_) {
    shared_.copies->Await(one.copy);
    shared_.copies->Forget(one.copy);
  }
  const auto lose = [this](const Landing& landing) {
    if (!landing.probe) {
      shared_.receiver.OnLost(landing.packet.TextBytes(), landing.target.data);
    }
  };
  if (current_) lose(*std::exchange(current_, std::nullopt));
  for (const Copying& one : std::exchange(copying_, {})) lose(one.landing);
  if (shared_.probe != nullptr) shared_.probe->Finish(this);
}

void SameHostConnection::Break() {
  if (broken_) return;
  broken_ = true;
  waiting_.clear();
  LoseAll();
  on_closed_();
}

void SameHostConnection::SendEnded(uint64_t id, const absl::Status& status) {
  WirePacket packet{.kind = WirePacket::Kind::kEnded, .id = id};
  packet.SetStatus(status);
  socket_.Send(packet);
}

}  // namespace penstock
