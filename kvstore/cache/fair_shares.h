#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "kvstore/cache/cache_policy.h"

namespace penstock {

// The number by which policies tell tenants apart: 0 for the empty id, of callers without a tenant.
uint64_t TenantNumber(std::string_view tenant_id);

// Evicts as `policy` does, except that a tenant cannot displace what others use: a tenant's equal
// share is the cached blocks of all tenants, divided by the number of tenants that have any. While
// a tenant is within its share, blocks that it has used within `kept` are not evicted for others
// that have at least theirs; the one with the most blocks gives its least recently used instead.
// With one tenant, or none, the order is that of `policy`.
std::unique_ptr<CachePolicy> MakeFairShares(std::unique_ptr<CachePolicy> policy, Duration kept);

}  // namespace penstock
