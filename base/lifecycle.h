#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Exit codes, as in sysexits.h. A process ended by signal n exits with 128 + n.
enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,        // a failure at run time
  kUsage = 64,         // the command line is wrong
  kBadData = 65,       // an input is malformed
  kNoInput = 66,       // a model or file does not exist
  kUnavailable = 69,   // a peer is not reachable
  kInternal = 70,      // a programming error
  kOsError = 71,       // the system refused a resource, or a port is in use
  kCannotCreate = 73,  // a file cannot be written
  kIoError = 74,
  kTemporary = 75,  // temporary: try again later
  kNoPermission = 77,
  kBadConfig = 78,
};

// The exit code of a process that ends with `status`.
ExitCode ExitCodeFor(const absl::Status& status);

// Blocks SIGINT and SIGTERM in this thread and in all threads that it starts later, so that they
// stay pending until ServeUntilSignal, even if the parent process had them ignored; ignores
// SIGPIPE. Call it first in main, before any thread exists (gRPC starts threads with its first
// object).
void BlockShutdownSignals();

// Raises the limit of open files to what the process may have, because each connection is one.
void RaiseDescriptorLimit();

// Waits for SIGINT or SIGTERM, then runs `stop`, which drains and returns. After the first signal,
// a second one ends the process at once with 128 + n. Returns the number of the first signal. Main
// thread only.
int ServeUntilSignal(const std::function<void()>& stop);

// Makes ServeUntilSignal return, as SIGTERM does. Any thread may call it.
void RequestShutdown();

// Writes `text` and a line's end atomically: a reader sees all of it or no file. Does nothing for
// an empty path. Returns PERMISSION_DENIED or UNAVAILABLE, with the path.
absl::Status WriteReadyFile(const std::string& path, std::string_view text);

// A parsed host:port.
struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};
// Parses "127.0.0.1:8090", "[::1]:0" or "name:80". Returns INVALID_ARGUMENT that names the missing
// part.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

// FAILED_PRECONDITION when `listen` is not a loopback address and `insecure` is false: a port that
// other machines reach without credentials must be asked for. INVALID_ARGUMENT when it is no
// host:port. Errors begin with `flag`, the configuration field.
absl::Status CheckListenAddress(std::string_view listen, bool insecure,
                                std::string_view flag = "listen");

// For a child process between fork and exec: requests SIGTERM when `parent` (its pid, read before
// the fork) exits. Async-signal-safe. Returns false if the parent has exited already.
bool DieWithParent(int parent);

}  // namespace penstock
