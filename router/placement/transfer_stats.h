#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "proto/worker.pb.h"

namespace penstock {

// The purpose of a KV transfer between workers.
enum class TransferKind {
  kHandoff,  // a prompt's KV, from the prefill to the decode worker
  kPrefix,   // a cached prefix, to the prefill worker that requested it
  kMove,     // a running choice's KV, from a draining decode worker
};

// Statistics of the KV transfers between workers that this router's requests caused, by link and
// kind. At most kLinksMax links: the least recently used idle link is replaced. Any thread.
class TransferStats {
 public:
  static constexpr size_t kLinksMax = 4096;

  struct Link {
    std::string from;  // endpoints
    std::string to;
    TransferKind kind = TransferKind::kHandoff;
    uint32_t open = 0;      // attempts whose calls are open
    uint64_t done = 0;      // transfers since the start
    uint64_t bytes = 0;     // bytes of KV since the start
    double exposed_ms = 0;  // the part of the last transfer that compute did not hide
    std::string transport;  // the last transfer's
    TimePoint used;
  };

  // One attempt, open until the destructor. Must not outlive the TransferStats.
  class Transfer {
   public:
    Transfer(TransferStats& book, Link& link) : stats_(book), link_(link) {}
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    void OnDone(const v1::HandoffDone& done);

   private:
    TransferStats& stats_;
    Link& link_;
  };

  explicit TransferStats(const Clock& clock) : clock_(clock) {}

  std::unique_ptr<Transfer> Open(TransferKind kind, const std::string& from, const std::string& to)
      EXCLUDES(mutex_);
  void OnPrefixRead(const std::string& from, const std::string& to, uint64_t bytes)
      EXCLUDES(mutex_);
  // At most `max` links, the most recently used first.
  std::vector<Link> Latest(size_t max) const EXCLUDES(mutex_);

 private:
  using Key = std::tuple<std::string, std::string, TransferKind>;
  Link& LinkOf(TransferKind kind, const std::string& from, const std::string& to) REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<Key, Link> links_ GUARDED_BY(mutex_);  // Transfer points into it
};

}  // namespace penstock
