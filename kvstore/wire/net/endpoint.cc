#include "kvstore/wire/net/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace penstock {
namespace {

struct HostPort {
  std::string host;
  std::string port;
};

// "host", "host:port", "[ip]", "[ip]:port", or a bare IPv6 address.
absl::StatusOr<HostPort> Split(const std::string& text) {
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    const bool with_port = end + 1 < text.size() && text[end + 1] == ':';
    if (end == std::string::npos || (!with_port && end + 1 != text.size())) {
      return InvalidArgument("\"{}\" is not of the form [address]:port", text);
    }
    return HostPort{text.substr(1, end - 1), with_port ? text.substr(end + 2) : "0"};
  }
  const size_t colon = text.find(':');
  if (colon == std::string::npos || text.find(':', colon + 1) != std::string::npos) {
    return HostPort{text, "0"};
  }
  return HostPort{text.substr(0, colon), text.substr(colon + 1)};
}

absl::StatusOr<int> ParsePort(const std::string& text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) {
    return InvalidArgument("port \"{}\" is invalid; it must be 0 to 65535", text);
  }
  return port;
}

std::optional<SocketEndpoint> FromSockaddr(const sockaddr* address) {
  SocketEndpoint endpoint;
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) endpoint.size = sizeof(sockaddr_in);
  if (address->sa_family == AF_INET6) endpoint.size = sizeof(sockaddr_in6);
  if (endpoint.size == 0) return std::nullopt;
  std::memcpy(&endpoint.address, address, endpoint.size);
  return endpoint;
}

absl::StatusOr<SocketEndpoint> LookUp(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return InvalidArgument("host \"{}\": {}", host, gai_strerror(error));
  const auto endpoint = FromSockaddr(found->ai_addr);
  freeaddrinfo(found);
  if (!endpoint) return InvalidArgument("host \"{}\" has no IP address", host);
  return *endpoint;
}

struct Interface {
  std::string name;
  SocketEndpoint address;
};

// The interfaces that are up, IPv4 before IPv6. Link-local addresses are left out because they need
// a scope.
std::vector<Interface> Interfaces() {
  std::vector<Interface> v4;
  std::vector<Interface> v6;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const auto address = FromSockaddr(entry->ifa_addr);
    if (!address || (entry->ifa_flags & IFF_UP) == 0) continue;
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&address->address);
    if (address->address.ss_family == AF_INET) {
      v4.push_back({entry->ifa_name, *address});
    } else if (!IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)) {
      v6.push_back({entry->ifa_name, *address});
    }
  }
  freeifaddrs(list);
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

bool SameIp(SocketEndpoint a, SocketEndpoint b) {
  a.set_port(0);
  b.set_port(0);
  return a.Text() == b.Text();
}

}  // namespace

int SocketEndpoint::port() const {
  // The port is at the same offset in IPv4 and IPv6.
  const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
  return ntohs(in->sin_port);
}

void SocketEndpoint::set_port(int port) {
  reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(static_cast<uint16_t>(port));
}

bool SocketEndpoint::any() const {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in*>(&address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

bool SocketEndpoint::loopback() const {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr);
  }
  const auto* in = reinterpret_cast<const sockaddr_in*>(&address);
  return (ntohl(in->sin_addr.s_addr) >> 24) == 127;
}

std::string SocketEndpoint::Text() const {
  char host[NI_MAXHOST] = "";
  getnameinfo(get(), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port())
                                       : fmt::format("{}:{}", host, port());
}

absl::StatusOr<SocketEndpoint> ParseEndpoint(const std::string& text) {
  ASSIGN_OR_RETURN(const HostPort parts, Split(text));
  ASSIGN_OR_RETURN(const int port, ParsePort(parts.port));
  ASSIGN_OR_RETURN(SocketEndpoint endpoint, LookUp(parts.host, AI_NUMERICHOST));
  endpoint.set_port(port);
  return endpoint;
}

absl::StatusOr<ListenPlace> FindListenPlace(const std::string& listen) {
  ASSIGN_OR_RETURN(const HostPort parts, Split(listen));
  ASSIGN_OR_RETURN(const int port, ParsePort(parts.port));
  const std::vector<Interface> interfaces = Interfaces();
  ListenPlace place;
  for (const Interface& interface : interfaces) {
    if (interface.name == parts.host && place.device.empty()) {
      place = {.bind = interface.address, .advertise = interface.address, .device = interface.name};
    }
  }
  if (place.device.empty()) {
    ASSIGN_OR_RETURN(place.bind, LookUp(parts.host, AI_PASSIVE));
    place.advertise = place.bind;
    for (const Interface& interface : interfaces) {
      const bool chosen = place.bind.any() ? place.device.empty() && !interface.address.loopback()
                                           : SameIp(interface.address, place.bind);
      if (!chosen) continue;
      place.advertise = interface.address;
      place.device = interface.name;
    }
  }
  if (place.advertise.any()) {
    return InvalidArgument("\"{}\": no network interface except loopback is up; give an address",
                           listen);
  }
  place.bind.set_port(port);
  place.advertise.set_port(port);
  return place;
}

}  // namespace penstock
