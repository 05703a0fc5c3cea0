#include "base/rpc/connection_acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/lifecycle.h"
#include "base/log/log.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

constexpr int kBacklog = 1024;
// Descriptors that stay reserved for files, the wire and calls to peers; half of them all if the
// process may have few.
constexpr rlim_t kKeptDescriptors = 128;
constexpr int kPauseMs = 100;  // while not even the reserve could be opened
constexpr Duration kLogPeriod = std::chrono::minutes(1);

// The kernel gives out the lowest free descriptor, so the number of a new one tells how many the
// process has.
bool WithinLimit(int descriptor) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const rlim_t kept = std::min(kKeptDescriptors, limit.rlim_cur / 2);
  return static_cast<rlim_t>(descriptor) < limit.rlim_cur - kept;
}

// A listening socket, or -1 and errno.
int ListenOn(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fd;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // inherited by connections
  if (address.ai_family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

uint16_t PortOf(int listener) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

}  // namespace

ConnectionAcceptor::ConnectionAcceptor() : stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(
    const std::string& listen) {
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(listen));
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor());
  const bool any = address.host == "0.0.0.0" || address.host == "::";
  absl::Status bound = acceptor->Bind(any ? "::" : address.host, address.port);
  if (!bound.ok() && any) bound = acceptor->Bind("0.0.0.0", address.port);  // a host without IPv6
  if (!bound.ok() || acceptor->stop_ < 0) {
    return ResourceExhausted(
        "cannot listen on {}: {}; choose another --listen, or port 0 for a "
        "free one",
        listen, bound.ok() ? "no descriptor is free" : Message(bound));
  }
  return acceptor;
}

// Listens on every address of `host`, all with the same port. One is enough.
absl::Status ConnectionAcceptor::Bind(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return Unavailable("{}", gai_strerror(failed));
  port_ = port;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    // The port has the same place in both kinds of addresses.
    reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port = htons(port_);
    const int listener = ListenOn(*one);
    if (listener < 0) {
      error = errno;
      continue;
    }
    listeners_.push_back(listener);
    port_ = PortOf(listener);
  }
  freeaddrinfo(found);
  if (listeners_.empty()) return Unavailable("{}", std::strerror(error));
  return absl::OkStatus();
}

ConnectionAcceptor::~ConnectionAcceptor() {
  Stop();
  if (stop_ >= 0) close(stop_);
}

void ConnectionAcceptor::Start(Take take) {
  PENSTOCK_CHECK(!thread_.joinable());
  take_ = std::move(take);
  thread_ = std::thread([this] {
    NameThisThread("grpc-accept");
    Run();
  });
}

void ConnectionAcceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  for (const int listener : listeners_) close(listener);
  listeners_.clear();
}

void ConnectionAcceptor::Run() {
  ReservedAcceptor acceptor([this](int connection) { Refuse(connection); });
  std::vector<pollfd> watched = {{.fd = stop_, .events = POLLIN, .revents = 0}};
  for (const int listener : listeners_) {
    watched.push_back({.fd = listener, .events = POLLIN, .revents = 0});
  }
  while (true) {
    // Without a reserve a connection could be neither taken nor closed, and poll would not wait.
    const bool paused = !acceptor.Restore();
    for (pollfd& one : watched) one.revents = 0;
    poll(watched.data(), paused ? 1 : watched.size(), paused ? kPauseMs : -1);
    if (watched[0].revents != 0) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents != 0) TakeOne(acceptor, watched[i].fd);
    }
  }
}

void ConnectionAcceptor::TakeOne(ReservedAcceptor& acceptor, int listener) {
  const ReservedAcceptor::Step step = acceptor.Accept(listener);
  if (step.kind != ReservedAcceptor::Step::Kind::kAccepted) return;
  if (WithinLimit(step.connection)) {
    take_(listener, step.connection);
  } else {
    Refuse(step.connection);
  }
}

void ConnectionAcceptor::Refuse(int connection) {
  close(connection);
  LogRefusal();
}

void ConnectionAcceptor::LogRefusal() {
  const TimePoint now = clock_.Now();
  if (logged_ != TimePoint() && now < logged_ + kLogPeriod) return;
  logged_ = now;
  LogWarning("connections_refused",
             "connections to port {} are closed at once: the process has too few free descriptors; "
             "raise ulimit -n, or find the client that has so many connections",
             port_);
}

}  // namespace penstock
