#pragma once

#include <sys/socket.h>

#include <string>

#include "base/status.h"

namespace penstock {

// An IP address with a port, in the form that the socket calls take.
struct SocketEndpoint {
  sockaddr_storage address{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  int port() const;
  void set_port(int port);
  bool any() const;          // 0.0.0.0 or ::
  bool loopback() const;     // 127.0.0.0/8 or ::1
  std::string Text() const;  // "ip:port" or "[ip]:port"
};

// Parses "ip:port" or "[ip]:port" without name resolution. INVALID_ARGUMENT quotes the text.
absl::StatusOr<SocketEndpoint> ParseEndpoint(const std::string& text);

struct ListenPlace {
  SocketEndpoint bind;
  SocketEndpoint advertise;  // with the port of `bind`
  std::string device;        // the network interface with this address; empty: all interfaces
};
// Resolves HostWireOptions::listen, including host names. INVALID_ARGUMENT names the mistake.
absl::StatusOr<ListenPlace> FindListenPlace(const std::string& listen);

}  // namespace penstock
