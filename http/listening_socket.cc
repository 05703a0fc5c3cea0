#include "http/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/lifecycle.h"

namespace penstock {
namespace {

constexpr int kBacklog = 1024;

// Prefers IPv4 for a name with addresses of both kinds.
const addrinfo& Preferred(const addrinfo& found) {
  for (const addrinfo* one = &found; one != nullptr; one = one->ai_next) {
    if (one->ai_family == AF_INET) return *one;
  }
  return found;
}

uint16_t PortOf(const sockaddr_storage& bound) {
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

}  // namespace

absl::StatusOr<int> ListenOn(const std::string& listen, std::string_view flag,
                             std::string* endpoint) {
  ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen));
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) {
    return InvalidArgument("cannot listen on {}: {}", listen, gai_strerror(failed));
  }
  const addrinfo& wanted = Preferred(*found);
  const int fd = socket(wanted.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const bool good =
      fd >= 0 && bind(fd, wanted.ai_addr, wanted.ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0;
  freeaddrinfo(found);
  if (!good) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return ResourceExhausted("cannot listen on {}: {}; choose another {}, or port 0 for a free one",
                             listen, strerror(error), flag);
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  address.port = PortOf(bound);
  *endpoint = FormatHostPort(address);
  return fd;
}

}  // namespace penstock
