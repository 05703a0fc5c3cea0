#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// The sources of workers' endpoints.
struct DiscoveryConfig {
  std::vector<std::string> workers;  // host:port
  std::string file;                  // path of a workers file; empty: none
  std::vector<std::string> dns;      // name:port
};

// Parses a workers file: one host:port a line; blank lines and comments from # on are skipped.
// INVALID_ARGUMENT names the line. Pure.
absl::StatusOr<std::set<std::string>> ParseWorkersFile(std::string_view text);

// Finds the workers' endpoints from a fixed list, a file and DNS names. One thread calls it. DNS
// lookups may hang and run on a thread of their own.
class Discovery {
 public:
  static constexpr size_t kMaxFileBytes = 1 << 20;

  // FAILED_PRECONDITION names the entry that is no host:port; NOT_FOUND, UNAVAILABLE or
  // INVALID_ARGUMENT when the file cannot be used.
  static absl::StatusOr<std::unique_ptr<Discovery>> Create(DiscoveryConfig config);
  ~Discovery();

  // The current endpoints. Reads the file again when it has changed. A file or name that cannot be
  // read keeps its last endpoints, with one warning in the log; a name that stops to exist keeps
  // them for a while (DnsAnswer).
  std::set<std::string> Poll();

 private:
  class Names;
  struct FileStamp {
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    int64_t bytes = -1;
    uint64_t inode = 0;
    bool operator==(const FileStamp&) const = default;
  };

  explicit Discovery(DiscoveryConfig config);
  absl::Status ReadFile();

  const DiscoveryConfig config_;
  FileStamp stamp_;
  std::set<std::string> from_file_;
  std::string logged_;
  std::unique_ptr<Names> names_;
};

}  // namespace penstock
