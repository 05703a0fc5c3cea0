#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/status.h"
#include "kvstore/wire/ucx/endpoint.h"

namespace penstock {

// All sockets made here are close-on-exec and non-blocking.

// Unix sockets of type SOCK_SEQPACKET with a name in the abstract namespace: nothing lies in the
// file system, and the name is gone with the process, however it ends.

absl::StatusOr<int> ListenAbstract(const std::string& name);
// UNAVAILABLE when nobody of this user listens at `name`, or takes us in before `deadline`.
absl::StatusOr<int> ConnectAbstract(const std::string& name,
                                    std::chrono::steady_clock::time_point deadline);
// Who is at the other end; its pid is 0 when it is in a process namespace that we cannot see.
std::optional<ucred> SocketPeer(int fd);

// TCP. The port of `endpoint` is set to the one that was bound.
absl::StatusOr<int> ListenTcp(SocketEndpoint& endpoint);
absl::StatusOr<int> ConnectTcp(const SocketEndpoint& endpoint,
                               std::chrono::steady_clock::time_point deadline);

}  // namespace penstock
