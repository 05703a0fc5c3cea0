#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/status.h"

namespace penstock {

// Unix sockets of type SOCK_SEQPACKET with a name in the abstract namespace: nothing lies in the
// file system, and the name is gone with the process, however it ends. All are close-on-exec and
// non-blocking.

absl::StatusOr<int> ListenAbstract(const std::string& name);
// UNAVAILABLE when nobody of this user listens at `name`, or takes us in before `deadline`.
absl::StatusOr<int> ConnectAbstract(const std::string& name,
                                    std::chrono::steady_clock::time_point deadline);
// Who is at the other end; its pid is 0 when it is in a process namespace that we cannot see.
std::optional<ucred> SocketPeer(int fd);

}  // namespace penstock
