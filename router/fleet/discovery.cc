#include "router/fleet/discovery.h"

#include <netdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "base/lifecycle.h"
#include "base/log/log.h"
#include "base/mutex.h"
#include "router/fleet/dns_answer.h"

namespace penstock {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

absl::Status CheckEndpoint(std::string_view endpoint) {
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(endpoint));
  if (address.port == 0) return InvalidArgument("`{}`: a worker's port is not 0", endpoint);
  return absl::OkStatus();
}

// Resolves name:port to all its addresses, as host:port. Empty when the name does not exist.
absl::StatusOr<std::set<std::string>> LookUp(const std::string& name_port) {
  ASSIGN_OR_RETURN(const HostPort name, ParseHostPort(name_port));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.host.c_str(), nullptr, &hints, &found);
  if (error == EAI_NONAME) return std::set<std::string>{};  // a Service without endpoints
  if (error != 0) return Unavailable("cannot look up the name: {}", gai_strerror(error));
  std::set<std::string> endpoints;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(next->ai_addr, next->ai_addrlen, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      endpoints.insert(FormatHostPort({text, name.port}));
    }
  }
  freeaddrinfo(found);
  return endpoints;
}

}  // namespace

// Resolves the DNS names every second on its own thread. Any thread may read the endpoints.
class Discovery::Names {
 public:
  explicit Names(std::vector<std::string> names) : names_(std::move(names)) {
    if (!names_.empty()) thread_ = std::thread([this] { Run(); });
  }

  // Waits for a lookup that is under way, which cannot be interrupted: up to the resolver's
  // timeout.
  ~Names() {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  std::set<std::string> endpoints() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::set<std::string> all;
    for (const auto& [name, answer] : answers_) {
      all.insert(answer.endpoints().begin(), answer.endpoints().end());
    }
    return all;
  }

 private:
  void Run() EXCLUDES(mutex_) {
    std::map<std::string, std::string> logged;  // the last problem of each name
    while (true) {
      for (const std::string& name : names_) {
        const std::string problem = Resolve(name);
        if (problem == std::exchange(logged[name], problem) || problem.empty()) continue;
        LogWarning("dns_lookup_failed", "{}: {}", name, problem);
      }
      MutexLock lock(mutex_);
      if (!stopped_) changed_.WaitFor(mutex_, std::chrono::seconds(1));
      if (stopped_) return;
    }
  }

  std::string Resolve(const std::string& name) EXCLUDES(mutex_) {
    auto found = LookUp(name);
    MutexLock lock(mutex_);
    return answers_[name].Take(std::move(found), SteadyClock().Now());
  }

  const std::vector<std::string> names_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::map<std::string, DnsAnswer> answers_ GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::StatusOr<std::set<std::string>> ParseWorkersFile(std::string_view text) {
  std::set<std::string> endpoints;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = Trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Status status = CheckEndpoint(line);
    if (!status.ok()) return Annotate(status, fmt::format("line {}", number));
    endpoints.emplace(line);
  }
  return endpoints;
}

Discovery::Discovery(DiscoveryConfig config)
    : config_(std::move(config)), names_(std::make_unique<Names>(config_.dns)) {}

Discovery::~Discovery() = default;

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::Create(DiscoveryConfig config) {
  for (const std::string& worker : config.workers) {
    const absl::Status status = CheckEndpoint(worker);
    if (!status.ok()) return FailedPrecondition("workers: {}", Message(status));
  }
  for (const std::string& name : config.dns) {
    const absl::Status status = CheckEndpoint(name);
    if (!status.ok()) return FailedPrecondition("workers_dns: {}", Message(status));
  }
  std::unique_ptr<Discovery> discovery(new Discovery(std::move(config)));
  RETURN_IF_ERROR(discovery->ReadFile());
  return discovery;
}

absl::Status Discovery::ReadFile() {
  if (config_.file.empty()) return absl::OkStatus();
  struct stat found {};
  if (stat(config_.file.c_str(), &found) != 0) {
    return NotFound("workers_file: cannot read {}: {}", config_.file, std::strerror(errno));
  }
  const FileStamp stamp{found.st_mtim.tv_sec, found.st_mtim.tv_nsec, found.st_size, found.st_ino};
  if (stamp == stamp_) return absl::OkStatus();
  if (stamp.bytes > static_cast<int64_t>(kMaxFileBytes)) {
    return InvalidArgument("workers_file: {} has {} bytes; the limit is {}", config_.file,
                           stamp.bytes, kMaxFileBytes);
  }
  std::ifstream stream(config_.file, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  if (!stream) return Unavailable("workers_file: cannot read {}", config_.file);
  auto endpoints = ParseWorkersFile(text.str());
  if (!endpoints.ok()) {
    return Annotate(endpoints.status(), fmt::format("workers_file: {}", config_.file));
  }
  from_file_ = *std::move(endpoints);
  stamp_ = stamp;
  return absl::OkStatus();
}

std::set<std::string> Discovery::Poll() {
  const absl::Status status = ReadFile();
  if (const std::string problem = status.ok() ? "" : Message(status); problem != logged_) {
    logged_ = problem;
    if (!problem.empty()) {
      LogWarning("workers_file_unreadable", "{}; the workers it named before are kept", problem);
    }
  }
  std::set<std::string> endpoints = names_->endpoints();
  endpoints.insert(config_.workers.begin(), config_.workers.end());
  endpoints.insert(from_file_.begin(), from_file_.end());
  return endpoints;
}

}  // namespace penstock
