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

// Why KV goes from one worker to another.
enum class TransferKind {
  kHandoff,  // a prompt's, from prefill to decode
  kPrefix,   // a cached prefix, to the prefill worker that asked for it
  kMove,     // a running choice's, from a decode worker that drains
};

// Which worker sends how much to which, as far as this router's requests go. Bounded: the link that
// was used longest ago, and is idle, makes room. Any thread.
class TransferBook {
 public:
  static constexpr size_t kLinksMax = 4096;

  struct Link {
    std::string from;  // endpoints
    std::string to;
    TransferKind kind = TransferKind::kHandoff;
    uint32_t open = 0;      // attempts under way, from their calls on
    uint64_t done = 0;      // since the start
    uint64_t bytes = 0;     // of KV that went over
    double exposed_ms = 0;  // of the last: what its client waited for
    std::string transport;  // of the last
    TimePoint used;
  };

  // One attempt; it is over when this goes. Must not outlive the book.
  class Transfer {
   public:
    Transfer(TransferBook& book, Link& link) : book_(book), link_(link) {}
    ~Transfer();
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;

    void OnDone(const v1::HandoffDone& done);

   private:
    TransferBook& book_;
    Link& link_;
  };

  explicit TransferBook(const Clock& clock) : clock_(clock) {}

  std::unique_ptr<Transfer> Open(TransferKind kind, const std::string& from, const std::string& to)
      EXCLUDES(mutex_);
  void OnPrefixRead(const std::string& from, const std::string& to, uint64_t bytes)
      EXCLUDES(mutex_);
  // At most `most`, those used last first.
  std::vector<Link> Latest(size_t max) const EXCLUDES(mutex_);

 private:
  using Key = std::tuple<std::string, std::string, TransferKind>;
  Link& LinkOf(TransferKind kind, const std::string& from, const std::string& to) REQUIRES(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<Key, Link> links_ GUARDED_BY(mutex_);  // open ones stay where they are
};

}  // namespace penstock
