#include "kvstore/wire/stream/door.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "kvstore/wire/net/listener.h"
#include "kvstore/wire/net/socket.h"

namespace penstock {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(100);
// The first byte of a TLS handshake record (RFC 8446, section 5.1).
constexpr char kTlsHandshake = 0x16;
constexpr size_t kMagicBytes = 4;

// The cost of one network's unauthenticated connections.
struct Network {
  size_t guests = 0;
  double handshakes = 0;  // that it may begin now
  SteadyClock::time_point counted;
};

struct Guest {
  int fd = -1;  // owned, or else of tls
  std::unique_ptr<Socket> tls;
  std::string network;
  SteadyClock::time_point until;
  bool waits_for_handshake = false;
  std::array<char, sizeof(WirePacket)> bytes{};
  size_t filled = 0;
};

uint32_t MagicOf(const Guest& guest) {
  uint32_t magic = 0;
  std::memcpy(&magic, guest.bytes.data(), sizeof(magic));
  return magic;
}

class Door final : public WireDoor {
 public:
  explicit Door(Args args) : args_(std::move(args)) {}
  ~Door() override {
    while (!guests_.empty()) Dismiss(guests_.begin());
  }

  absl::Status Start();

 private:
  using Guests = std::list<Guest>;
  enum class Outcome { kWaits, kRefused, kDone };

  void Admit(int fd);
  bool MakeRoom(const std::string& network);
  bool Allows(Network& network) const;
  void OnReady(Guests::iterator guest);
  Outcome Serve(Guest& guest);
  Outcome Recognise(Guest& guest);
  Outcome BeginTls(Guest& guest);
  Outcome ReadPlain(Guest& guest);
  Outcome ReadTls(Guest& guest);
  Outcome HandOverPlain(Guest& guest);
  Outcome HandOver(Guest& guest, std::unique_ptr<Socket> socket);
  Outcome Refuse(WireRefusal why) {
    args_.events.on_refused(why);
    return Outcome::kRefused;
  }
  void Release(Guests::iterator guest);
  void Dismiss(Guests::iterator guest);
  void Tick();
  void ForgetQuietNetworks(SteadyClock::time_point now);

  const Args args_;
  std::unique_ptr<WireTicker> ticker_;
  Guests guests_;  // the oldest first
  std::map<std::string, Network> networks_;
  std::unique_ptr<WireListener> listener_;
};

absl::Status Door::Start() {
  ASSIGN_OR_RETURN(ticker_, WireTicker::Create(args_.loop, kTick, [this] { Tick(); }));
  ASSIGN_OR_RETURN(listener_,
                   WireListener::Create(args_.loop, args_.fd, [this](int fd) { Admit(fd); }));
  return absl::OkStatus();
}

void Door::Admit(int fd) {
  TuneTcp(fd);
  TuneWithinHost(fd);
  std::string network = PeerNetwork(fd);
  if (!MakeRoom(network)) {
    close(fd);
    return;
  }
  const auto now = SteadyClock::now();
  const auto [found, first] = networks_.try_emplace(network);
  if (first) {
    found->second.handshakes = args_.limits.handshakes_burst;
    found->second.counted = now;
  }
  ++found->second.guests;
  const auto guest = guests_.emplace(guests_.end());
  guest->fd = fd;
  guest->network = std::move(network);
  guest->until = now + args_.limits.time;
  ticker_->Switch(true);
  const auto watched =
      args_.loop.Watch(fd, EPOLLIN | EPOLLRDHUP, [this, guest](uint32_t) { OnReady(guest); });
  if (!watched.ok()) Dismiss(guest);
}

// False only when the network of the newest guest is not to be known any more.
bool Door::MakeRoom(const std::string& network) {
  if (network.empty()) return false;
  const auto own = networks_.find(network);
  const bool own_is_full =
      own != networks_.end() && own->second.guests >= args_.limits.guests_of_network;
  if (!own_is_full && guests_.size() < args_.limits.guests) return true;
  const std::string& crowded =
      own_is_full ? network
                  : std::max_element(networks_.begin(), networks_.end(), [](auto& a, auto& b) {
                      return a.second.guests < b.second.guests;
                    })->first;
  const auto oldest = std::find_if(guests_.begin(), guests_.end(),
                                   [&](const Guest& guest) { return guest.network == crowded; });
  args_.events.on_refused(WireRefusal::kLimit);
  Dismiss(oldest);
  return true;
}

void Door::OnReady(Guests::iterator guest) {
  switch (Serve(*guest)) {
    case Outcome::kWaits:
      return;
    case Outcome::kRefused:
      return Dismiss(guest);
    case Outcome::kDone:
      return Release(guest);
  }
}

Door::Outcome Door::Serve(Guest& guest) {
  if (guest.tls != nullptr) return ReadTls(guest);
  return guest.filled == 0 ? Recognise(guest) : ReadPlain(guest);
}

// Tells TLS from packets by the first byte.
Door::Outcome Door::Recognise(Guest& guest) {
  char first = 0;
  const ssize_t got = recv(guest.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::kWaits;
  if (got <= 0) return Refuse(WireRefusal::kGreeting);
  if (first != kTlsHandshake) return ReadPlain(guest);
  return args_.tls == nullptr ? Refuse(WireRefusal::kProtocol) : BeginTls(guest);
}

Door::Outcome Door::BeginTls(Guest& guest) {
  if (!Allows(networks_.at(guest.network))) {
    // A tick asks again; until then the bytes stay where they are.
    guest.waits_for_handshake = true;
    args_.loop.Rewatch(guest.fd, 0);
    return Outcome::kWaits;
  }
  guest.tls = args_.tls->Accept(guest.fd);
  if (guest.tls != nullptr) return ReadTls(guest);
  guest.fd = -1;  // Accept has closed it.
  return Refuse(WireRefusal::kLimit);
}

// A token bucket.
bool Door::Allows(Network& network) const {
  const auto now = SteadyClock::now();
  const double seconds = std::chrono::duration<double>(now - network.counted).count();
  network.counted = now;
  network.handshakes = std::min(args_.limits.handshakes_burst,
                                network.handshakes + seconds * args_.limits.handshakes_per_s);
  if (network.handshakes < 1) return false;
  network.handshakes -= 1;
  return true;
}

Door::Outcome Door::ReadPlain(Guest& guest) {
  while (true) {
    const bool known = guest.filled >= kMagicBytes;
    const bool stream = known && MagicOf(guest) == StreamHello::kMagic;
    const bool packet = known && MagicOf(guest) == WirePacket::kMagic && args_.tls == nullptr;
    if (known && !stream && !packet) return Refuse(WireRefusal::kProtocol);
    const size_t due = !known ? kMagicBytes : stream ? sizeof(StreamHello) : sizeof(WirePacket);
    if (known && guest.filled == due) return HandOverPlain(guest);
    const ssize_t got =
        recv(guest.fd, guest.bytes.data() + guest.filled, due - guest.filled, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Outcome::kWaits;
    if (got <= 0) return Refuse(WireRefusal::kGreeting);
    guest.filled += static_cast<size_t>(got);
  }
}

Door::Outcome Door::HandOverPlain(Guest& guest) {
  if (MagicOf(guest) != StreamHello::kMagic) {
    args_.loop.Unwatch(guest.fd);
    return HandOver(guest, MakePlainSocket(std::exchange(guest.fd, -1)));
  }
  StreamHello hello;
  std::memcpy(&hello, guest.bytes.data(), sizeof(hello));
  args_.loop.Unwatch(guest.fd);
  args_.events.on_stream(std::exchange(guest.fd, -1), hello);
  return Outcome::kDone;
}

Door::Outcome Door::ReadTls(Guest& guest) {
  while (guest.filled < guest.bytes.size()) {
    const Socket::Result result = guest.tls->Read(std::span(guest.bytes).subspan(guest.filled));
    if (result.kind == Socket::Result::Kind::kWouldBlock) {
      args_.loop.Rewatch(
          guest.fd, guest.tls->read_waits_for_write() ? EPOLLIN | EPOLLOUT : EPOLLIN | EPOLLRDHUP);
      return Outcome::kWaits;
    }
    if (result.kind != Socket::Result::Kind::kBytes) {
      return Refuse(guest.tls->established() ? WireRefusal::kGreeting : WireRefusal::kCertificate);
    }
    guest.filled += result.bytes;
  }
  args_.loop.Unwatch(std::exchange(guest.fd, -1));
  return HandOver(guest, std::move(guest.tls));
}

Door::Outcome Door::HandOver(Guest& guest, std::unique_ptr<Socket> socket) {
  const auto packet = ParseWirePacket(std::as_bytes(std::span(guest.bytes)));
  if (!packet.ok() || packet->kind != WirePacket::Kind::kHello) {
    return Refuse(WireRefusal::kProtocol);
  }
  std::string secret = socket->ExportSecret(kSecretLabel);
  args_.events.on_hello({.socket = std::move(socket),
                         .hello = *packet,
                         .secret = std::move(secret),
                         .network = guest.network});
  return Outcome::kDone;
}

// The guest's connection is somebody else's now.
void Door::Release(Guests::iterator guest) {
  --networks_.at(guest->network).guests;
  guests_.erase(guest);
}

void Door::Dismiss(Guests::iterator guest) {
  if (guest->fd >= 0) args_.loop.Unwatch(guest->fd);
  if (guest->tls == nullptr && guest->fd >= 0) close(guest->fd);
  Release(guest);
}

void Door::Tick() {
  const auto now = SteadyClock::now();
  while (!guests_.empty() && guests_.front().until <= now) {
    args_.events.on_refused(WireRefusal::kGreeting);
    Dismiss(guests_.begin());
  }
  for (auto next = guests_.begin(); next != guests_.end();) {
    const auto guest = next++;
    if (!std::exchange(guest->waits_for_handshake, false)) continue;
    args_.loop.Rewatch(guest->fd, EPOLLIN | EPOLLRDHUP);
    OnReady(guest);
  }
  ForgetQuietNetworks(now);
  if (guests_.empty() && networks_.empty()) ticker_->Switch(false);
}

// A network that has not called for so long may begin a full burst again.
void Door::ForgetQuietNetworks(SteadyClock::time_point now) {
  const auto full =
      std::chrono::duration<double>(args_.limits.handshakes_burst / args_.limits.handshakes_per_s);
  std::erase_if(networks_, [&](const auto& entry) {
    return entry.second.guests == 0 && now - entry.second.counted > full;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireDoor>> WireDoor::Open(Args args) {
  auto door = std::make_unique<Door>(std::move(args));
  RETURN_IF_ERROR(door->Start());
  return door;
}

}  // namespace penstock
