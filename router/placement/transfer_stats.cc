#include "router/placement/transfer_stats.h"

#include <algorithm>

namespace penstock {

TransferStats::Transfer::~Transfer() {
  MutexLock lock(stats_.mutex_);
  --link_.open;
  link_.used = stats_.clock_.Now();
}

void TransferStats::Transfer::OnDone(const v1::HandoffDone& done) {
  MutexLock lock(stats_.mutex_);
  ++link_.done;
  link_.bytes += done.kv_bytes();
  link_.exposed_ms = done.exposed_ms();
  link_.transport = done.transport();
}

std::unique_ptr<TransferStats::Transfer> TransferStats::Open(TransferKind kind,
                                                             const std::string& from,
                                                             const std::string& to) {
  MutexLock lock(mutex_);
  Link& link = LinkOf(kind, from, to);
  ++link.open;
  return std::make_unique<Transfer>(*this, link);
}

void TransferStats::OnPrefixRead(const std::string& from, const std::string& to, uint64_t bytes) {
  MutexLock lock(mutex_);
  Link& link = LinkOf(TransferKind::kPrefix, from, to);
  ++link.done;
  link.bytes += bytes;
}

TransferStats::Link& TransferStats::LinkOf(TransferKind kind, const std::string& from,
                                           const std::string& to) {
  const Key key(from, to, kind);
  const auto found = links_.find(key);
  if (found == links_.end() && links_.size() >= kLinksMax) {
    auto oldest = links_.end();
    for (auto at = links_.begin(); at != links_.end(); ++at) {
      if (at->second.open > 0) continue;
      if (oldest == links_.end() || at->second.used < oldest->second.used) oldest = at;
    }
    // When all links are open, the map grows beyond kLinksMax; open requests bound it.
    if (oldest != links_.end()) links_.erase(oldest);
  }
  Link& link = found != links_.end() ? found->second : links_[key];
  link.from = from;
  link.to = to;
  link.kind = kind;
  link.used = clock_.Now();
  return link;
}

std::vector<TransferStats::Link> TransferStats::Latest(size_t max) const {
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
