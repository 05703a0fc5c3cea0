#include "kvstore/wire/stream/stream_link.h"

#include <openssl/crypto.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kvstore/wire/net/socket.h"

namespace penstock {
namespace {

// Bytes read before others get their turn.
constexpr size_t kReadBytesPerTurn = size_t{1} << 20;
// Small frames that wait for the connection; a peer that does not read, and still sends, stays
// below.
constexpr size_t kFramesMax = 4096;
// Messages that the peer has announced and that are neither received nor refused.
constexpr size_t kIncomingMax = 4096;
// The time that a thread looks out for the next bytes of a message before it sleeps: about what
// being woken takes on a virtual machine.
constexpr auto kLookOut = std::chrono::microseconds(50);

StreamDirection Outward(bool caller) {
  return caller ? StreamDirection::kFromCaller : StreamDirection::kToCaller;
}

}  // namespace

StreamLink::StreamLink(WireLinks::Args args, std::string address)
    : loop_(args.loop),
      events_(std::move(args.events)),
      secret_(std::move(args.secret)),
      peer_(args.peer),
      address_(std::move(address)),
      output_(secret_, Outward(peer_.has_value())),
      input_(
          secret_, Outward(!peer_.has_value()),
          {.target_of = [this](const StreamFrame& part) { return TargetOf(part); },
           .on_frame = [this](const StreamFrame& frame,
                              std::span<const std::byte> body) { return OnFrame(frame, body); }}) {
  loop_.AddSource(this);
}

StreamLink::~StreamLink() { Cut(); }

// ---------------------------------------------------------------- the connection

absl::Status StreamLink::Connect(const std::string& peer) {
  if (!peer_ || fd_ >= 0) return Unavailable("the peer sent an address that nobody asked for");
  StreamHello hello{.proof = StreamProof(secret_)};
  if (peer.size() != hello.link.size()) {
    return Unavailable("the peer named its link with {} bytes, must be {}", peer.size(),
                       hello.link.size());
  }
  std::memcpy(hello.link.data(), peer.data(), peer.size());
  ASSIGN_OR_RETURN(const int fd, StartTcp(*peer_));
  output_.Begin(hello);
  connecting_ = true;
  blocked_ = true;
  return Watch(fd);
}

bool StreamLink::Adopt(int fd, const StreamHello& hello) {
  const auto proof = StreamProof(secret_);
  const bool good = fd_ < 0 && !cut_ && hello.version == StreamHello().version &&
                    CRYPTO_memcmp(hello.proof.data(), proof.data(), proof.size()) == 0;
  if (!good) {
    close(fd);
    return false;
  }
  if (const absl::Status status = Watch(fd); !status.ok()) Fail(status);
  return true;
}

// Takes ownership of `fd`.
absl::Status StreamLink::Watch(int fd) {
  fd_ = fd;
  const uint32_t events = blocked_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  return loop_.Watch(fd, events, [this](uint32_t ready) { OnReady(ready); });
}

void StreamLink::OnReady(uint32_t events) {
  absl::Status status;
  if (connecting_) status = FinishConnecting();
  if (status.ok() && (events & EPOLLOUT) != 0 && blocked_) {
    blocked_ = false;
    loop_.Rewatch(fd_, EPOLLIN);
    Write();
  }
  if (status.ok() && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) status = Read();
  if (!status.ok()) Fail(std::move(status));
}

absl::Status StreamLink::FinishConnecting() {
  connecting_ = false;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) {
    return Unavailable("cannot connect to {}: {}", peer_->Text(), std::strerror(error));
  }
  TuneWithinHost(fd_);
  return absl::OkStatus();
}

absl::Status StreamLink::Read() {
  for (size_t total = 0; total < kReadBytesPerTurn && !failed_;) {
    std::array<iovec, 2> room = input_.Room();
    const ssize_t got = readv(fd_, room.data(), static_cast<int>(room.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got <= 0) {
      return Unavailable("the peer is gone ({})", got == 0 ? "closed" : std::strerror(errno));
    }
    RETURN_IF_ERROR(input_.Filled(static_cast<size_t>(got)));
    moved_ = std::chrono::steady_clock::now();
    total += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

void StreamLink::Write() {
  if (!CanWrite()) return;
  const auto state = output_.Write(fd_);
  if (!state.ok()) return Fail(state.status());
  moved_ = std::chrono::steady_clock::now();
  if (*state != StreamOutput::State::kBlocked) return;
  blocked_ = true;
  loop_.Rewatch(fd_, EPOLLIN | EPOLLOUT);
}

// ---------------------------------------------------------------- messages

void StreamLink::Send(std::span<const std::byte> header, const WirePayload& payload, Done done) {
  PENSTOCK_CHECK_LE(header.size(), kHeaderMax);
  PENSTOCK_CHECK(payload.memory == MemoryKind::kHost);
  if (cut_) return done(Cancelled("the link is cut"));
  const size_t size = payload.bytes.size();
  const bool eager = size <= kEagerMax;
  std::vector<std::byte> body(header.begin(), header.end());
  if (eager) body.insert(body.end(), payload.bytes.begin(), payload.bytes.end());
  const StreamFrame frame{.kind = StreamFrame::Kind::kMessage,
                          .header_bytes = static_cast<uint32_t>(header.size()),
                          .body_bytes = static_cast<uint32_t>(body.size()),
                          .id = next_id_++,
                          .value = size};
  output_.Add(frame, std::move(body));
  if (eager) return PostEvent([done = std::move(done)] { done(absl::OkStatus()); });
  outgoing_.emplace(frame.id, Outgoing{.payload = payload.bytes, .done = std::move(done)});
}

void StreamLink::Receive(const Arrival& arrival, const WireTarget& target, Done done) {
  PENSTOCK_CHECK(target.memory == MemoryKind::kHost);
  if (cut_) return done(Cancelled("the link is cut"));
  Incoming& incoming = incoming_.at(arrival.rendezvous);
  incoming.target = target.data;
  incoming.done = std::move(done);
  output_.Add({.kind = StreamFrame::Kind::kWanted, .id = arrival.rendezvous}, {});
}

void StreamLink::Drop(const Arrival& arrival) {
  if (cut_ || arrival.rendezvous == 0) return;
  incoming_.erase(arrival.rendezvous);
  output_.Add({.kind = StreamFrame::Kind::kRefused, .id = arrival.rendezvous}, {});
}

// The header of a part is believed only as far as choosing among messages that are under way:
// whatever it says, the bytes go to where nothing is read until the seal was right.
absl::StatusOr<std::byte*> StreamLink::TargetOf(const StreamFrame& part) {
  const auto found = incoming_.find(part.id);
  if (found == incoming_.end() || found->second.target == nullptr) {
    return DataLoss("a part of message {}, which was not asked for", part.id);
  }
  const Incoming& incoming = found->second;
  const size_t due = std::min(kStreamPartBytes, incoming.size - incoming.received);
  if (part.value != incoming.received || part.body_bytes != due) {
    return DataLoss("a part of {} bytes at {}, where {} bytes at {} are due", part.body_bytes,
                    part.value, due, incoming.received);
  }
  return incoming.target + incoming.received;
}

absl::Status StreamLink::OnFrame(const StreamFrame& frame, std::span<const std::byte> body) {
  switch (frame.kind) {
    case StreamFrame::Kind::kMessage:
      return OnMessage(frame, body);
    case StreamFrame::Kind::kPart:
      return OnPart(frame);
    default:
      return OnAnswer(frame);
  }
}

absl::Status StreamLink::OnMessage(const StreamFrame& frame, std::span<const std::byte> body) {
  if (frame.id <= last_id_) return DataLoss("message {} comes after {}", frame.id, last_id_);
  if (output_.frames() > kFramesMax || incoming_.size() >= kIncomingMax) {
    return Unavailable("the peer sends more messages than it takes answers");
  }
  last_id_ = frame.id;
  Arrival arrival{.size = frame.value};
  const std::span<const std::byte> header = body.first(frame.header_bytes);
  const std::span<const std::byte> eager = body.subspan(frame.header_bytes);
  arrival.header.assign(header.begin(), header.end());
  arrival.eager.assign(eager.begin(), eager.end());
  if (frame.value > kEagerMax) {
    arrival.rendezvous = frame.id;
    incoming_.emplace(frame.id, Incoming{.size = frame.value});
  }
  PostEvent([this, arrival = std::make_shared<Arrival>(std::move(arrival))] {
    if (!cut_) events_.on_arrival(std::move(*arrival));
  });
  return absl::OkStatus();
}

absl::Status StreamLink::OnPart(const StreamFrame& frame) {
  Incoming& incoming = incoming_.at(frame.id);
  incoming.received += frame.body_bytes;
  if (incoming.received < incoming.size) return absl::OkStatus();
  PostEvent([done = std::move(incoming.done)] { done(absl::OkStatus()); });
  incoming_.erase(frame.id);
  return absl::OkStatus();
}

absl::Status StreamLink::OnAnswer(const StreamFrame& frame) {
  const auto found = outgoing_.find(frame.id);
  if (found == outgoing_.end() || found->second.wanted) {
    return DataLoss("an answer to message {}, which does not wait for one", frame.id);
  }
  if (frame.kind == StreamFrame::Kind::kWanted) {
    found->second.wanted = true;
    output_.AddParts(frame.id, found->second.payload, [this, id = frame.id] {
      PostEvent(
          [done = std::move(outgoing_.extract(id).mapped().done)] { done(absl::OkStatus()); });
    });
    return absl::OkStatus();
  }
  PostEvent([done = std::move(found->second.done)] { done(absl::OkStatus()); });
  outgoing_.erase(found);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- events and the end

void StreamLink::Fail(absl::Status status) {
  if (std::exchange(failed_, true) || cut_) return;
  loop_.Unwatch(fd_);
  PostEvent([this, status = std::move(status)] {
    if (!cut_) events_.on_failed(status);
  });
}

void StreamLink::Cut() {
  if (std::exchange(cut_, true)) return;
  loop_.RemoveSource(this);
  if (on_settled) std::exchange(on_settled, nullptr)();
  if (fd_ >= 0) {
    loop_.Unwatch(fd_);
    // Also ends the connection if a child process inherited the descriptor.
    shutdown(fd_, SHUT_RDWR);
    close(fd_);
    fd_ = -1;
  }
  output_.Clear();
  for (auto& [id, outgoing] : std::exchange(outgoing_, {})) {
    PostEvent([done = std::move(outgoing.done)] { done(Cancelled("the link was cut")); });
  }
  for (auto& [id, incoming] : std::exchange(incoming_, {})) {
    if (!incoming.done) continue;
    PostEvent([done = std::move(incoming.done)] { done(Cancelled("the link was cut")); });
  }
  DeliverEvents();
}

void StreamLink::PostEvent(std::function<void()> event) {
  pending_events_.push_back(std::move(event));
}

// A sleeping link costs nothing, so thousands of links are cheap.
bool StreamLink::Progress() {
  const bool worked = !pending_events_.empty();
  DeliverEvents();
  if (!CanWrite()) return worked;
  Write();
  return true;
}

bool StreamLink::Arm() {
  if (!pending_events_.empty() || CanWrite()) return false;
  return !ExpectsBytes() || std::chrono::steady_clock::now() - moved_ > kLookOut;
}

// In the middle of a message, the next bytes are worth a look before the thread sleeps.
bool StreamLink::ExpectsBytes() const {
  if (fd_ < 0 || failed_) return false;
  return (blocked_ && !connecting_) ||
         std::any_of(incoming_.begin(), incoming_.end(),
                     [](const auto& entry) { return entry.second.target != nullptr; });
}

bool StreamLink::CanWrite() const { return fd_ >= 0 && !failed_ && !blocked_ && !output_.idle(); }

void StreamLink::DeliverEvents() {
  // One at a time: a callback may cut the link, which delivers the other events from within.
  while (!pending_events_.empty()) {
    const std::function<void()> event = std::move(pending_events_.front());
    pending_events_.pop_front();
    event();
  }
}

}  // namespace penstock
