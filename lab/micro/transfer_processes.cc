#include "lab/micro/transfer_processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

namespace penstock {

absl::StatusOr<Child> Child::Fork(const std::function<void(int in, int out)>& body) {
  std::array<int, 2> to_child{};
  std::array<int, 2> from_child{};
  if (pipe2(to_child.data(), O_CLOEXEC) != 0 || pipe2(from_child.data(), O_CLOEXEC) != 0) {
    return ResourceExhausted("bench: no pipe: {}", std::strerror(errno));
  }
  const pid_t pid = fork();
  if (pid < 0) return ResourceExhausted("bench: no process: {}", std::strerror(errno));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_child[1]);
    close(from_child[0]);
    body(to_child[0], from_child[1]);
    _exit(0);
  }
  close(to_child[0]);
  close(from_child[1]);
  return Child(pid, to_child[1], from_child[0]);
}

absl::StatusOr<Child> Child::Execute(const std::vector<std::string>& command,
                                     const std::map<std::string, std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return Fork([&](int, int out) {
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(argv[0], argv.data());
    _exit(127);
  });
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)) {}

Child::~Child() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(input_);
  close(output_);
}

absl::Status Child::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  if (write(input_, text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return Unavailable("bench: a child process is gone");
}

absl::StatusOr<std::string> Child::ReadLine(int timeout_ms) {
  std::string line;
  while (true) {
    pollfd entry{.fd = output_, .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, timeout_ms) <= 0) return Unavailable("bench: a child process is silent");
    char c = 0;
    if (read(output_, &c, 1) != 1) return Unavailable("bench: a child process has ended");
    if (c == '\n') return line;
    line += c;
  }
}

absl::StatusOr<std::string> LastLineOf(const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& environment,
                                       int timeout_ms) {
  ASSIGN_OR_RETURN(Child child, Child::Execute(command, environment));
  std::string last;
  for (auto line = child.ReadLine(timeout_ms); line.ok(); line = child.ReadLine(timeout_ms)) {
    if (!line->empty()) last = *line;
  }
  if (last.empty()) return Unavailable("bench: {} printed nothing", command[0]);
  return last;
}

absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return Unavailable("bench: no free port: {}", std::strerror(errno));
  return ntohs(address.sin_port);
}

bool IsListening(int port) {
  const std::string needle = fmt::format(":{:04X} ", port);
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    for (std::string line; std::getline(table, line);) {
      const size_t local = line.find(needle);
      // "  sl  local remote state": 0A is LISTEN, after the local address and the remote one.
      if (local < 45 && line.find(" 0A ") != std::string::npos) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace penstock
