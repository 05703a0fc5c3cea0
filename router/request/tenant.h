#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

inline constexpr int64_t kMaxPriority = 100;  // and -100 the least

struct TenantLimits {
  uint32_t requests = 0;           // open at once; 0: no limit of its own
  uint64_t tokens_per_minute = 0;  // of prompts and answers together; 0: no limit
  // See kvstore/names/kv_policy.h. What requests get that ask for nothing, and what they may ask
  // for besides that; nothing here: whatever workers offer.
  std::string kv_policy = {};
  std::optional<std::vector<std::string>> kv_policies = {};
  int32_t priority_max = 0;  // that its requests may ask for
};

// What one tenant has open and has used lately. Any thread.
class Tenant {
 public:
  Tenant(std::string name, TimePoint now) : name_(std::move(name)), refilled_(now) {}

  const std::string& name() const { return name_; }
  void SetLimits(const TenantLimits& limits) EXCLUDES(mutex_);
  // RESOURCE_EXHAUSTED with kReasonQuota, and when to come again, at a limit. Tokens are charged
  // once they are known, so an account may go below zero, and is then refilled before the next.
  absl::Status Enter(TimePoint now) EXCLUDES(mutex_);
  void Leave() EXCLUDES(mutex_);
  void Charge(uint64_t tokens, TimePoint now) EXCLUDES(mutex_);
  // The policy of a request that asks for `asked`, a parsed one, or for nothing. PERMISSION_DENIED
  // lists what the tenant may ask for.
  absl::StatusOr<std::string> KvPolicyFor(const std::optional<std::string>& asked) EXCLUDES(mutex_);
  // PERMISSION_DENIED names the highest there is for it.
  absl::Status CheckPriority(int32_t asked) EXCLUDES(mutex_);

 private:
  void Refill(TimePoint now) REQUIRES(mutex_);

  const std::string name_;
  Mutex mutex_;
  TenantLimits limits_ GUARDED_BY(mutex_);
  uint32_t open_ GUARDED_BY(mutex_) = 0;
  double tokens_ GUARDED_BY(mutex_) = 0;  // left of this minute's
  TimePoint refilled_ GUARDED_BY(mutex_);
};

// Who asks: a tenant, or nobody in particular where no keys are configured.
struct Caller {
  std::shared_ptr<Tenant> tenant;  // shared with the keys; null: none are configured
};

// The partition of the prefix cache that a request may hit: of its tenant and, within that, of the
// salt the client chose. Equal on every router; empty where there is neither.
std::string CacheSalt(const Caller& caller, const std::string& client_salt);

}  // namespace penstock
