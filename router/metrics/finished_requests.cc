#include "router/metrics/finished_requests.h"

namespace penstock {

void FinishedRequests::Add(FinishedRequest request) {
  const MutexLock lock(mutex_);
  request.number = ++ended_;
  requests_.push_front(std::move(request));
  if (requests_.size() > kMax) requests_.pop_back();
}

std::vector<FinishedRequest> FinishedRequests::Latest(const std::optional<std::string>& tenant,
                                                      size_t max) const {
  std::vector<FinishedRequest> latest;
  const MutexLock lock(mutex_);
  for (const FinishedRequest& request : requests_) {
    if (latest.size() == max) break;
    if (!tenant || request.tenant == *tenant) latest.push_back(request);
  }
  return latest;
}

}  // namespace penstock
