#include "router/request/tenant.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cmath>

#include "kvstore/names/kv_policy.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

absl::Status OverQuota(std::string_view what, Duration retry_after) {
  return WithDetail(ResourceExhausted("{}", what),
                    {.reason = kReasonQuota, .retry_after = retry_after});
}

}  // namespace

void Tenant::SetLimits(const TenantLimits& limits) {
  MutexLock lock(mutex_);
  if (limits_.tokens_per_minute != limits.tokens_per_minute) {
    tokens_ = static_cast<double>(limits.tokens_per_minute);
  }
  limits_ = limits;
}

void Tenant::Refill(TimePoint now) {
  const double full = static_cast<double>(limits_.tokens_per_minute);
  const double minutes = Milliseconds(now - refilled_) / 60e3;
  tokens_ = std::min(full, tokens_ + std::max(minutes, 0.0) * full);
  refilled_ = now;
}

absl::Status Tenant::Enter(TimePoint now) {
  MutexLock lock(mutex_);
  Refill(now);
  if (limits_.requests > 0 && open_ >= limits_.requests) {
    return OverQuota(fmt::format("the tenant has {} requests open, which is its limit", open_),
                     std::chrono::seconds(1));
  }
  if (limits_.tokens_per_minute > 0 && tokens_ <= 0) {
    const double minutes = (1 - tokens_) / static_cast<double>(limits_.tokens_per_minute);
    return OverQuota(
        fmt::format("the tenant has used its {} tokens a minute", limits_.tokens_per_minute),
        std::chrono::milliseconds(static_cast<int64_t>(std::ceil(minutes * 60e3))));
  }
  ++open_;
  return absl::OkStatus();
}

void Tenant::Leave() {
  MutexLock lock(mutex_);
  --open_;
}

void Tenant::Charge(uint64_t tokens, TimePoint now) {
  MutexLock lock(mutex_);
  Refill(now);
  tokens_ -= static_cast<double>(tokens);
}

absl::StatusOr<std::string> Tenant::KvPolicyFor(const std::optional<std::string>& asked) {
  MutexLock lock(mutex_);
  if (!asked || *asked == limits_.kv_policy) return limits_.kv_policy;
  if (!limits_.kv_policies || asked->empty()) return *asked;  // Every tenant may use "exact".
  const auto& may = *limits_.kv_policies;
  const bool permitted = std::any_of(
      may.begin(), may.end(), [&](const std::string& listed) { return Permits(listed, *asked); });
  if (permitted) return *asked;
  std::vector<std::string> names = {KvPolicyName("")};
  for (const std::string& policy : may) {
    if (!policy.empty()) names.push_back(policy);
  }
  return WithDetail(absl::PermissionDeniedError(
                        fmt::format("kv_policy \"{}\" is not one of the tenant's; it may be {}",
                                    *asked, fmt::join(names, ", "))),
                    {.field = "kv_policy"});
}

absl::Status Tenant::CheckPriority(int32_t asked) {
  MutexLock lock(mutex_);
  if (asked <= limits_.priority_max) return absl::OkStatus();
  return WithDetail(absl::PermissionDeniedError(fmt::format(
                        "priority is {}; the tenant's limit is {}", asked, limits_.priority_max)),
                    {.field = "priority"});
}

std::string AccountOfCaller(const Caller& caller) {
  return caller.tenant == nullptr ? "" : "tenant " + caller.tenant->name();
}

std::string CacheSalt(const Caller& caller, const std::string& client_salt) {
  if (caller.tenant == nullptr && client_salt.empty()) return "";
  // The length before the tenant's name makes the encoding of the pair unambiguous.
  const std::string name = caller.tenant == nullptr ? "" : caller.tenant->name();
  const std::string text =
      fmt::format("penstock cache salt 1\n{} {}{}", name.size(), name, client_salt);
  std::string salt(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(salt.data()));
  return salt;
}

std::string TenantId(const Caller& caller) { return CacheSalt(caller, ""); }

}  // namespace penstock
