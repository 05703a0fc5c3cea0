#include "router/placement/transfer_book.h"

#include <algorithm>

namespace penstock {

TransferBook::Transfer::~Transfer() {
  MutexLock lock(book_.mutex_);
  --link_.open;
  link_.used = book_.clock_.Now();
}

void TransferBook::Transfer::OnDone(const v1::HandoffDone& done) {
  MutexLock lock(book_.mutex_);
  ++link_.done;
  link_.bytes += done.kv_bytes();
  link_.exposed_ms = done.exposed_ms();
  link_.transport = done.transport();
}

std::unique_ptr<TransferBook::Transfer> TransferBook::Open(TransferKind kind,
                                                           const std::string& from,
                                                           const std::string& to) {
  MutexLock lock(mutex_);
  Link& link = LinkOf(kind, from, to);
  ++link.open;
  return std::make_unique<Transfer>(*this, link);
}

void TransferBook::OnPrefixRead(const std::string& from, const std::string& to, uint64_t bytes) {
  MutexLock lock(mutex_);
  Link& link = LinkOf(TransferKind::kPrefix, from, to);
  ++link.done;
  link.bytes += bytes;
}

TransferBook::Link& TransferBook::LinkOf(TransferKind kind, const std::string& from,
                                         const std::string& to) {
  const Key key(from, to, kind);
  const auto found = links_.find(key);
  if (found == links_.end() && links_.size() >= kLinksMax) {
    auto oldest = links_.end();
    for (auto at = links_.begin(); at != links_.end(); ++at) {
      if (at->second.open > 0) continue;
      if (oldest == links_.end() || at->second.used < oldest->second.used) oldest = at;
    }
    // With all of them open there are more than kLinksMax; requests are bounded, too.
    if (oldest != links_.end()) links_.erase(oldest);
  }
  Link& link = found != links_.end() ? found->second : links_[key];
  link.from = from;
  link.to = to;
  link.kind = kind;
  link.used = clock_.Now();
  return link;
}

std::vector<TransferBook::Link> TransferBook::Latest(size_t max) const {
  std::vector<Link> latest;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, link] : links_) latest.push_back(link);
  }
  std::sort(latest.begin(), latest.end(),
            [](const Link& a, const Link& b) { return a.used > b.used; });
  if (latest.size() > max) latest.resize(max);
  return latest;
}

}  // namespace penstock
