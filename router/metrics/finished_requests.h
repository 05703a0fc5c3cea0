#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "router/metrics/session_timing.h"

namespace penstock {

// A request that has ended. It says nothing of what was asked or answered.
struct FinishedRequest {
  uint64_t number = 0;  // in order of their ends; FinishedRequests sets it
  std::string id;
  std::string trace_id;  // empty: no trace
  std::string tenant;    // empty: none
  std::string_view endpoint;
  std::string_view status;  // one of kStatuses
  std::string reason;       // of a refusal; empty: none
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint64_t output_tokens = 0;
  TimePoint received, end;
  std::optional<Duration> first_token;  // since receipt; nullopt: no token was sent
  std::vector<StageSpan> stages;        // SessionTiming::Timeline
};

// Keeps the last kMax requests that ended, for the page. Any thread.
class FinishedRequests {
 public:
  static constexpr size_t kMax = 64;

  void Add(FinishedRequest request) EXCLUDES(mutex_);
  // At most `max`, the newest first. `tenant` limits them to one tenant; nullopt: all tenants.
  std::vector<FinishedRequest> Latest(const std::optional<std::string>& tenant, size_t max) const
      EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<FinishedRequest> requests_ GUARDED_BY(mutex_);
  uint64_t ended_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
