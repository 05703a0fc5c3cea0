#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

struct DiscoveryConfig {
  std::vector<std::string> workers;  // host:port
  std::string file;                  // empty: none
  std::vector<std::string> dns;      // name:port
};

// One host:port a line; blank lines and what follows a # are skipped. INVALID_ARGUMENT names the
// line. Pure.
absl::StatusOr<std::set<std::string>> ParseWorkersFile(std::string_view text);

// The workers there are, by a fixed list, a file and DNS names. One thread, but for the lookups of
// names, which may hang and have a thread of their own.
class Discovery {
 public:
  static constexpr size_t kMaxFileBytes = 1 << 20;

  // FAILED_PRECONDITION names what is not a host:port; errors of the file when it cannot be read.
  static absl::StatusOr<std::unique_ptr<Discovery>> Create(DiscoveryConfig config);
  ~Discovery();

  // The endpoints as of now. Reads the file where it has changed; a file or name that cannot be
  // read any more keeps what it said last (logged once).
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
