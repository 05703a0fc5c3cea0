#include "router/admission/admission_order.h"

#include <algorithm>

namespace penstock {
namespace {

// At this many tenants, those whose last tag the virtual time has passed are removed.
constexpr size_t kTenantsKept = 1024;

}  // namespace

AdmissionTicket AdmissionOrder::Enter(const std::string& tenant, int32_t priority, double tokens) {
  MutexLock lock(mutex_);
  if (last_tags_.size() >= kTenantsKept) Forget();
  double& last = last_tags_[tenant];
  last = std::max(last, now_) + tokens;
  return {.urgency = -priority, .tag = last, .number = next_++};
}

bool AdmissionOrder::MustWait(const AdmissionTicket& ticket) const {
  MutexLock lock(mutex_);
  return !waiting_.empty() && *waiting_.begin() < ticket;
}

bool AdmissionOrder::Enqueue(const AdmissionTicket& ticket) {
  MutexLock lock(mutex_);
  if (waiting_.contains(ticket)) return true;
  if (waiting_.size() >= waiting_max_) return false;
  waiting_.insert(ticket);
  return true;
}

void AdmissionOrder::OnPlaced(const AdmissionTicket& ticket) {
  MutexLock lock(mutex_);
  waiting_.erase(ticket);
  now_ = std::max(now_, ticket.tag);
}

void AdmissionOrder::Remove(const AdmissionTicket& ticket) {
  MutexLock lock(mutex_);
  waiting_.erase(ticket);
}

size_t AdmissionOrder::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void AdmissionOrder::Forget() {
  std::erase_if(last_tags_, [now = now_](const auto& entry) { return entry.second <= now; });
}

}  // namespace penstock
