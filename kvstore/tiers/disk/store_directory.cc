#include "kvstore/tiers/disk/store_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <set>

#include "base/errno_status.h"
#include "kvstore/tiers/disk/io_queue.h"

namespace penstock {
namespace {

template <class Number>
std::optional<Number> ParseWhole(std::string_view text, int base) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The content of a lock file. The file is small and not opened for direct I/O.
std::string FormatLine(uint64_t format) { return fmt::format("penstock kv 1 {:016x}\n", format); }

struct LockFile {
  std::string line;
  Duration idle{};  // time since its worker was seen
};

LockFile ReadLockFile(const std::string& path) {
  LockFile file;
  const OwnedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (fd.get() < 0 || fstat(fd.get(), &status) != 0) return file;
  char text[64];
  const ssize_t size = pread(fd.get(), text, sizeof(text), 0);
  if (size > 0) file.line.assign(text, static_cast<size_t>(size));
  file.idle = std::chrono::seconds(std::max<time_t>(0, time(nullptr) - status.st_mtime));
  return file;
}

// The writer numbers worth trying, best first.
std::vector<uint32_t> Candidates(const std::string& directory, const std::set<uint32_t>& there,
                                 uint64_t format, Duration foreign_idle) {
  std::vector<uint32_t> own;
  std::vector<uint32_t> foreign;
  for (const uint32_t writer : there) {
    const LockFile lock = ReadLockFile(directory + "/" + LockFileName(writer));
    if (lock.line == FormatLine(format)) {
      own.push_back(writer);
    } else if (lock.idle >= foreign_idle) {
      foreign.push_back(writer);
    }
  }
  own.insert(own.end(), foreign.begin(), foreign.end());
  for (uint32_t writer = 0; writer < kWritersMax; ++writer) {
    if (!there.contains(writer)) own.push_back(writer);
  }
  return own;
}

}  // namespace

std::string SegmentFileName(const SegmentName& name) {
  return fmt::format("{:02}-{:08x}.seg", name.writer, name.sequence);
}

std::optional<SegmentName> ParseSegmentFileName(std::string_view name) {
  if (name.size() < 8 || name[2] != '-' || !name.ends_with(".seg")) return std::nullopt;
  const auto writer = ParseWhole<uint32_t>(name.substr(0, 2), 10);
  const auto sequence = ParseWhole<uint64_t>(name.substr(3, name.size() - 7), 16);
  if (!writer || !sequence) return std::nullopt;
  return SegmentName{.writer = *writer, .sequence = *sequence};
}

std::string LockFileName(uint32_t writer) { return fmt::format("{:02}.lock", writer); }

std::optional<uint32_t> ParseLockFileName(std::string_view name) {
  if (name.size() != 7 || !name.ends_with(".lock")) return std::nullopt;
  return ParseWhole<uint32_t>(name.substr(0, 2), 10);
}

absl::StatusOr<WriterClaim> ClaimWriter(StoreFiles& files, const std::string& directory,
                                        uint64_t format, Duration foreign_idle) {
  RETURN_IF_ERROR(files.MakeDirectory(directory));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  std::set<uint32_t> there;
  for (const std::string& name : names) {
    if (const auto writer = ParseLockFileName(name)) there.insert(*writer);
  }
  WriterClaim claim;
  for (const uint32_t writer : Candidates(directory, there, format, foreign_idle)) {
    auto lock = files.Lock(directory + "/" + LockFileName(writer));
    if (!lock.ok() && lock.status().code() == absl::StatusCode::kUnavailable) continue;
    if (!lock.ok()) return lock.status();
    claim.writer = writer;
    claim.lock = *std::move(lock);
    break;
  }
  if (claim.lock.get() < 0) {
    return ResourceExhausted(
        "{}: all {} writer numbers are in use; give this worker another directory", directory,
        kWritersMax);
  }
  const std::string line = FormatLine(format);
  const std::string path = directory + "/" + LockFileName(claim.writer);
  // On a full disk a number with the right line can still be claimed.
  if (ReadLockFile(path).line != line &&
      pwrite(claim.lock.get(), line.data(), line.size(), 0) < 0) {
    return ErrnoStatus(errno, path);
  }
  RefreshClaim(claim);
  // Listed again, because the number may have belonged to another worker until now.
  ASSIGN_OR_RETURN(const std::vector<std::string> now, files.List(directory));
  for (const std::string& name : now) {
    const auto segment = ParseSegmentFileName(name);
    if (segment && segment->writer == claim.writer) claim.segments.push_back(*segment);
  }
  std::sort(claim.segments.begin(), claim.segments.end());
  return claim;
}

absl::Status CheckClaim(const WriterClaim& claim, const std::string& directory) {
  const std::string path = directory + "/" + LockFileName(claim.writer);
  struct stat mine;
  struct stat there;
  if (fstat(claim.lock.get(), &mine) != 0 || stat(path.c_str(), &there) != 0 ||
      mine.st_ino != there.st_ino || mine.st_dev != there.st_dev) {
    return NotFound("{}: was removed", path);
  }
  return absl::OkStatus();
}

bool IsHeld(const std::string& directory, uint32_t writer) {
  const OwnedFd fd(open((directory + "/" + LockFileName(writer)).c_str(), O_RDONLY | O_CLOEXEC));
  // Takes a shared lock for an instant. A worker that starts at that moment would take another
  // number, so only administrative commands call this.
  return fd.get() >= 0 && flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

void RefreshClaim(const WriterClaim& claim) { futimens(claim.lock.get(), nullptr); }

}  // namespace penstock
