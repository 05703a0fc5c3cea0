#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/metrics/metrics.h"
#include "base/mutex.h"

namespace penstock {

// What each tenant of the keys file uses, for bills and capacity. Requests without a tenant count
// for the tenant "". The registry outlives it. Any thread.
class TenantUsage {
 public:
  explicit TenantUsage(MetricsRegistry& registry);

  struct Request {
    std::string_view status;  // of OutcomeOf
    double prompt_tokens = 0;
    double cached_tokens = 0;  // of the prompt's
    double output_tokens = 0;
  };
  void Add(const std::string& tenant, const Request& request) EXCLUDES(mutex_);

 private:
  struct Counters {
    std::map<std::string, prometheus::Counter*, std::less<>> requests;  // by status
    prometheus::Counter* prompt = nullptr;
    prometheus::Counter* cached = nullptr;
    prometheus::Counter* output = nullptr;
  };
  Counters& Of(const std::string& tenant) REQUIRES(mutex_);

  MetricsRegistry& registry_;
  Mutex mutex_;
  std::map<std::string, Counters> tenants_ GUARDED_BY(mutex_);  // as many as the keys file has
};

}  // namespace penstock
