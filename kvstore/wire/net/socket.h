#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/status.h"
#include "kvstore/wire/net/endpoint.h"

namespace penstock {

// All sockets made here are close-on-exec and non-blocking.

// Unix sockets of type SOCK_SEQPACKET with abstract names: nothing exists in the file system, and
// the name disappears with the process, however it ends.

absl::StatusOr<int> ListenAbstract(const std::string& name);
// UNAVAILABLE when no process of this user listens at `name`, or none accepts before `deadline`.
absl::StatusOr<int> ConnectAbstract(const std::string& name,
                                    std::chrono::steady_clock::time_point deadline);
// The process at the other end; its pid is 0 when it is in a process namespace that this process
// cannot see.
std::optional<ucred> SocketPeer(int fd);

// TCP. Sets the port of `endpoint` to the bound port.
absl::StatusOr<int> ListenTcp(SocketEndpoint& endpoint);
absl::StatusOr<int> ConnectTcp(const SocketEndpoint& endpoint,
                               std::chrono::steady_clock::time_point deadline);
// Starts to connect: the socket becomes writable when that has succeeded or failed (SO_ERROR).
absl::StatusOr<int> StartTcp(const SocketEndpoint& endpoint);
// Sends packets without delay, and ends the connection when the peer is silent for 10 s.
void TuneTcp(int fd);
// Bounds the send buffer of a connection whose ends have the same address, so that the buffer stays
// in the processor's cache; the kernel would let it grow to megabytes. Between hosts the kernel
// fits the buffer to the network. Does nothing before the connection is made.
void TuneWithinHost(int fd);
// ClientNetwork of the peer. Empty when the connection is gone.
std::string PeerNetwork(int fd);

}  // namespace penstock
