#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

inline constexpr int64_t kMaxPriority = 100;  // priorities are in [-kMaxPriority, kMaxPriority]

// The limits of one tenant, from the keys file.
struct TenantLimits {
  uint32_t requests = 0;           // requests open at once; 0: no limit per tenant
  uint64_t tokens_per_minute = 0;  // prompt and answer tokens together; 0: no limit
  // The default policy of the tenant's requests (kvstore/names/kv_policy.h; empty: exact), and the
  // policies that requests may also name; nullopt: every policy that workers offer.
  std::string kv_policy = {};
  std::optional<std::vector<std::string>> kv_policies = {};
  int32_t priority_max = 0;  // the highest priority that requests may have
};

// One tenant's open requests and token budget. Shared by the key ring and the tenant's open
// requests. Any thread.
class Tenant {
 public:
  Tenant(std::string name, TimePoint now) : name_(std::move(name)), refilled_(now) {}

  const std::string& name() const { return name_; }
  void SetLimits(const TenantLimits& limits) EXCLUDES(mutex_);
  // Counts one more open request. RESOURCE_EXHAUSTED with kReasonQuota and retry_after at a limit.
  // The token budget is a token bucket that holds one minute's tokens. Tokens are charged when they
  // are known, so the budget can become negative; requests are refused until it is positive again.
  absl::Status Enter(TimePoint now) EXCLUDES(mutex_);
  void Leave() EXCLUDES(mutex_);
  void Charge(uint64_t tokens, TimePoint now) EXCLUDES(mutex_);
  // The policy of a request that names the parsed policy `asked`; nullopt: it names none.
  // PERMISSION_DENIED lists the policies that the tenant may use.
  absl::StatusOr<std::string> KvPolicyFor(const std::optional<std::string>& asked) EXCLUDES(mutex_);
  // PERMISSION_DENIED names the tenant's highest priority.
  absl::Status CheckPriority(int32_t asked) EXCLUDES(mutex_);

 private:
  void Refill(TimePoint now) REQUIRES(mutex_);

  const std::string name_;
  Mutex mutex_;
  TenantLimits limits_ GUARDED_BY(mutex_);
  uint32_t open_ GUARDED_BY(mutex_) = 0;
  double tokens_ GUARDED_BY(mutex_) = 0;  // budget left at refilled_; may be negative
  TimePoint refilled_ GUARDED_BY(mutex_);
};

// The authenticated caller of a request.
struct Caller {
  std::shared_ptr<Tenant> tenant;  // shared with the key ring; nullptr: no keys are configured
};

// The account of the caller's request bodies; empty when no keys are configured.
std::string AccountOfCaller(const Caller& caller);

// The salt of the prefix-cache partition that a request may hit: SHA-256 of its tenant and the salt
// that the client chose within it. Equal on every router; empty when there is neither.
std::string CacheSalt(const Caller& caller, const std::string& client_salt);

// The id by which workers know the caller's tenant, whatever salts it uses: a digest, because they
// need no names. Equal on every router; empty without a tenant.
std::string TenantId(const Caller& caller);

}  // namespace penstock
