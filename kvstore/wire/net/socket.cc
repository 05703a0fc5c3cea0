#include "kvstore/wire/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/net/client_network.h"

namespace penstock {
namespace {

constexpr int kSendBytesWithinHost = 416 << 10;

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

Address Abstract(const std::string& name) {
  Address address;
  address.value.sun_family = AF_UNIX;
  PENSTOCK_CHECK_LT(name.size(), sizeof(address.value.sun_path) - 1);
  // A zero as first byte selects the abstract namespace.
  std::copy(name.begin(), name.end(), address.value.sun_path + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::StatusOr<int> NewSocket(int family, int type) {
  const int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ResourceExhausted("wire: no socket: {}", std::strerror(errno));
  return fd;
}

// Both ends of the connection are on the same address.
bool HasOneAddress(int fd) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr;
  }
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

absl::StatusOr<int> ListenAbstract(const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, NewSocket(AF_UNIX, SOCK_SEQPACKET));
  const Address address = Abstract(name);
  if (bind(fd, address.get(), address.size) == 0 && listen(fd, 64) == 0) return fd;
  const int error = errno;
  close(fd);
  return Unavailable("wire: cannot listen on a unix socket: {}", std::strerror(error));
}

absl::StatusOr<int> ConnectAbstract(const std::string& name,
                                    std::chrono::steady_clock::time_point deadline) {
  ASSIGN_OR_RETURN(const int fd, NewSocket(AF_UNIX, SOCK_SEQPACKET));
  const Address address = Abstract(name);
  int error = 0;
  while (connect(fd, address.get(), address.size) != 0) {
    error = errno;
    if (error == EINTR) continue;
    if (error != EAGAIN || std::chrono::steady_clock::now() >= deadline) break;
    // The listener's backlog is full, and no descriptor reports when it has room again.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    error = 0;
  }
  const auto peer = SocketPeer(fd);
  if (error == 0 && peer && peer->uid == geteuid()) return fd;
  close(fd);
  return Unavailable("wire: no same-host lane: {}",
                     error != 0 ? std::strerror(error) : "the peer runs as another user");
}

std::optional<ucred> SocketPeer(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

absl::StatusOr<int> ListenTcp(SocketEndpoint& endpoint) {
  ASSIGN_OR_RETURN(const int fd, NewSocket(endpoint.address.ss_family, SOCK_STREAM));
  const int on = 1;
  // Lets a restarted process bind its port while old connections linger in the kernel.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  SocketEndpoint bound = endpoint;
  if (bind(fd, endpoint.get(), endpoint.size) == 0 && listen(fd, 128) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound.address), &bound.size) == 0) {
    endpoint = bound;
    return fd;
  }
  const int error = errno;
  close(fd);
  return Unavailable("wire: cannot listen on {}: {}", endpoint.Text(), std::strerror(error));
}

absl::StatusOr<int> StartTcp(const SocketEndpoint& endpoint) {
  ASSIGN_OR_RETURN(const int fd, NewSocket(endpoint.address.ss_family, SOCK_STREAM));
  TuneTcp(fd);
  if (connect(fd, endpoint.get(), endpoint.size) == 0 || errno == EINPROGRESS) return fd;
  const int error = errno;
  close(fd);
  return Unavailable("wire: cannot connect to {}: {}", endpoint.Text(), std::strerror(error));
}

absl::StatusOr<int> ConnectTcp(const SocketEndpoint& endpoint,
                               std::chrono::steady_clock::time_point deadline) {
  ASSIGN_OR_RETURN(const int fd, StartTcp(endpoint));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  int error = ETIMEDOUT;
  socklen_t size = sizeof(error);
  if (poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) > 0) {
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return fd;
  close(fd);
  return Unavailable("wire: cannot connect to {}: {}", endpoint.Text(), std::strerror(error));
}

void TuneWithinHost(int fd) {
  if (!HasOneAddress(fd)) return;
  const int bytes = kSendBytesWithinHost;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

void TuneTcp(int fd) {
  const int on = 1;
  const int silence_ms = 10'000;
  const int probe_s = 5;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_s, sizeof(probe_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof(probe_s));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

std::string PeerNetwork(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return ClientNetwork(address);
}

}  // namespace penstock
