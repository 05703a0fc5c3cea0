#include "http/server/idle_connections.h"

#include <algorithm>

namespace penstock {

void IdleConnections::Member::SetIdle(bool idle) {
  MutexLock lock(all_->mutex_);
  if (listed_) all_->Remove(*this);
  if (!idle) return;
  std::list<Member*>& members = all_->idle_[client_];
  place_ = members.insert(members.end(), this);
  listed_ = true;
}

void IdleConnections::Remove(Member& member) {
  const auto found = idle_.find(member.client_);
  found->second.erase(member.place_);
  if (found->second.empty()) idle_.erase(found);
  member.listed_ = false;
}

size_t IdleConnections::count() const {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [client, members] : idle_) count += members.size();
  return count;
}

bool IdleConnections::CloseOne() {
  std::function<void()> close;
  {
    MutexLock lock(mutex_);
    const auto most = std::max_element(
        idle_.begin(), idle_.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    if (most == idle_.end()) return false;
    Member& oldest = *most->second.front();
    close = oldest.close_;
    Remove(oldest);
  }
  close();
  return true;
}

}  // namespace penstock
