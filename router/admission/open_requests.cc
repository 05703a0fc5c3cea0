#include "router/admission/open_requests.h"

#include "router/request/error_detail.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<OpenRequests::Slot>> OpenRequests::Enter() {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckLocked());
  ++count_;
  return std::make_unique<Slot>(*this);
}

absl::Status OpenRequests::Check() const {
  MutexLock lock(mutex_);
  return CheckLocked();
}

absl::Status OpenRequests::CheckLocked() const {
  if (closed_) {
    return WithDetail(Unavailable("the router is shutting down; ask another one"),
                      {.reason = kReasonDraining});
  }
  if (count_ < max_) return absl::OkStatus();
  return WithDetail(
      ResourceExhausted(
          "{} requests are open, which is the router's max_requests; try again in a second",
          count_),
      {.reason = kReasonOverloaded, .retry_after = std::chrono::seconds(1)});
}

void OpenRequests::Leave() {
  MutexLock lock(mutex_);
  --count_;
  left_.NotifyAll();
}

bool OpenRequests::CloseAndWait(Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  closed_ = true;
  while (count_ > 0) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    left_.WaitFor(mutex_, left);
  }
  return true;
}

uint32_t OpenRequests::count() const {
  MutexLock lock(mutex_);
  return count_;
}

}  // namespace penstock
