#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// As in sysexits.h; a process ended by signal n exits with 128 + n.
enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,        // at run time
  kUsage = 64,         // the command line is wrong
  kBadData = 65,       // an input is malformed
  kNoInput = 66,       // a model or file is not there
  kUnavailable = 69,   // a peer is not there
  kInternal = 70,      // our mistake
  kOsError = 71,       // the system refused a resource; a port in use
  kCannotCreate = 73,  // a file cannot be written
  kIoError = 74,
  kTemporary = 75,  // try again later
  kNoPermission = 77,
  kBadConfig = 78,
};

// The exit code for what a process could not do.
ExitCode ExitCodeFor(const absl::Status& status);

// Blocks SIGINT and SIGTERM in this thread and in those it starts afterwards, so that they wait to
// be taken even where whoever started us had them ignored; ignores SIGPIPE. First thing in main,
// before any thread (gRPC starts some with its first object).
void BlockShutdownSignals();

// Waits for SIGINT or SIGTERM, then runs `stop`, which drains and returns. From the first signal on
// a second one ends the process at once with 128 + n. Returns the first signal's number. Main
// thread.
int ServeUntilSignal(const std::function<void()>& stop);

// Makes ServeUntilSignal return, as SIGTERM does. Any thread.
void RequestShutdown();

// Writes "endpoint\n" so that a reader sees all of it or no file. Nothing for an empty path.
// PERMISSION_DENIED or UNAVAILABLE, with the path.
absl::Status WriteReadyFile(const std::string& path, std::string_view endpoint);

struct HostPort {
  std::string host;  // without the brackets of IPv6
  uint16_t port = 0;
};
// "127.0.0.1:8090", "[::1]:0", "name:80". INVALID_ARGUMENT names what is missing.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

// FAILED_PRECONDITION when `listen` is not a loopback address and `insecure` is false: a port that
// other machines reach without credentials must be asked for. INVALID_ARGUMENT when it is no
// host:port. Errors begin with `flag`, the configuration field.
absl::Status CheckListenAddress(std::string_view listen, bool insecure,
                                std::string_view flag = "listen");

// For a child between fork and exec: SIGTERM when `parent` (its pid, read before the fork) is gone.
// Async-signal-safe. False when it is gone already.
bool DieWithParent(int parent);

}  // namespace penstock
