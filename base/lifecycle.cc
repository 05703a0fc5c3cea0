#include "base/lifecycle.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/check.h"

namespace penstock {
namespace {

sigset_t ShutdownSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// An explicit handler, because the first process of a container has no default action for signals.
void ExitNow(int signal_number) { _exit(128 + signal_number); }

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status FileError(const std::string& what, const std::string& path, int error) {
  const std::string text = fmt::format("cannot {} {}: {}", what, path, std::strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

}  // namespace

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
      return ExitCode::kBadData;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNoInput;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kInternal:
      return ExitCode::kInternal;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kOsError;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return ExitCode::kNoPermission;
    case absl::StatusCode::kFailedPrecondition:
      return ExitCode::kBadConfig;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return ExitCode::kTemporary;
    default:
      return ExitCode::kFailure;
  }
}

void BlockShutdownSignals() {
  const sigset_t signals = ShutdownSignals();
  PENSTOCK_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  // A shell starts background jobs with SIGINT ignored, and an ignored signal never becomes
  // pending.
  for (const int number : {SIGINT, SIGTERM}) signal(number, SIG_DFL);
  signal(SIGPIPE, SIG_IGN);
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int ServeUntilSignal(const std::function<void()>& stop) {
  const sigset_t signals = ShutdownSignals();
  int first = 0;
  PENSTOCK_CHECK_EQ(sigwait(&signals, &first), 0);
  struct sigaction action {};
  action.sa_handler = ExitNow;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  stop();
  return first;
}

void RequestShutdown() { kill(getpid(), SIGTERM); }

absl::Status WriteReadyFile(const std::string& path, std::string_view text) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  const std::string line = fmt::format("{}\n", text);
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return FileError("create", temporary, errno);
  const ssize_t written = write(file, line.data(), line.size());
  const int error = written < 0 ? errno : ENOSPC;
  close(file);
  if (written != static_cast<ssize_t>(line.size())) {
    unlink(temporary.c_str());
    return FileError("write", temporary, error);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int rename_error = errno;
    unlink(temporary.c_str());
    return FileError("create", path, rename_error);
  }
  return absl::OkStatus();
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return InvalidArgument("`{}` has no port; write host:port, e.g. 127.0.0.1:8090", text);
  }
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return InvalidArgument("`{}` has no host; write host:port", text);
  if (!bracketed && host.find(':') != std::string_view::npos) {
    return InvalidArgument("`{}` is an IPv6 address without brackets; write e.g. [::1]:8090", text);
  }
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const char* end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, port);
  if (error != std::errc() || rest != end || digits.empty()) {
    return InvalidArgument("`{}` has an invalid port; allowed are 0 to 65535", text);
  }
  return HostPort{std::string(host), port};
}

std::string FormatHostPort(const HostPort& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", address.host, address.port)
            : fmt::format("{}:{}", address.host, address.port);
}

absl::Status CheckListenAddress(std::string_view listen, bool insecure, std::string_view flag) {
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  if (!address.ok()) return Annotate(address.status(), flag);
  if (insecure || IsLoopback(address->host)) return absl::OkStatus();
  return FailedPrecondition(
      "{}={} can be reached from other machines, and no authentication is configured: listen on "
      "127.0.0.1, or accept that with --insecure",
      flag, listen);
}

bool DieWithParent(int parent) {
  return prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent;
}

}  // namespace penstock
