#pragma once

#include <sys/socket.h>

#include <string>

#include "base/status.h"

namespace penstock {

// An IP address with a port, as the socket calls take it.
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

// "ip:port" or "[ip]:port", nothing looked up. INVALID_ARGUMENT quotes it.
absl::StatusOr<SocketEndpoint> ParseEndpoint(const std::string& text);

struct ListenPlace {
  SocketEndpoint bind;
  SocketEndpoint advertise;  // with the port of `bind`
  std::string device;        // the network interface that has the address; empty: all of them
};
// Takes what UcxWireOptions::listen takes; looks names up. INVALID_ARGUMENT names what is wrong.
absl::StatusOr<ListenPlace> FindListenPlace(const std::string& listen);

}  // namespace penstock
