#include "kvstore/cache/fair_shares.h"

#include <map>
#include <set>
#include <tuple>

#include "base/check.h"

namespace penstock {
namespace {

class FairShares final : public CachePolicy {
 public:
  FairShares(std::unique_ptr<CachePolicy> policy, Duration kept)
      : policy_(std::move(policy)), kept_(kept) {}

  CacheRunStats Admit(const BlockId& id, const CacheAccess& access) override {
    return policy_->Admit(id, access);
  }
  void Use(CacheRun& run, const CacheAccess& access) override { policy_->Use(run, access); }
  void OnEvicted(const CacheRun& run, std::span<const BlockId> ids) override {
    policy_->OnEvicted(run, ids);
  }

  void List(CacheRun& run) override {
    policy_->List(run);
    if (run.stats.tenant == 0) return;
    Share& share = shares_[run.stats.tenant];
    share.blocks += run.blocks;
    blocks_ += run.blocks;
    if (run.evictable) share.evictable.insert(RankOf(run));
  }
  void Unlist(CacheRun& run) override {
    policy_->Unlist(run);
    if (run.stats.tenant == 0) return;
    const auto found = shares_.find(run.stats.tenant);
    PENSTOCK_CHECK(found != shares_.end());
    Share& share = found->second;
    share.blocks -= run.blocks;
    blocks_ -= run.blocks;
    if (run.evictable) PENSTOCK_CHECK_EQ(share.evictable.erase(RankOf(run)), 1u);
    if (share.blocks == 0) shares_.erase(found);
  }

  CacheRun* Victim(TimePoint now) override {
    CacheRun* const victim = policy_->Victim(now);
    if (victim == nullptr || shares_.size() < 2 || victim->stats.tenant == 0) return victim;
    const bool in_use = now - victim->stats.used_at < kept_;
    if (!in_use || Excess(shares_.at(victim->stats.tenant)) > 0) return victim;
    const Share* most = nullptr;
    for (const auto& [tenant, share] : shares_) {
      const bool may_keep = tenant == victim->stats.tenant || Excess(share) < 0;
      if (may_keep || share.evictable.empty()) continue;
      if (most == nullptr || share.blocks > most->blocks) most = &share;
    }
    return most == nullptr ? victim : std::get<CacheRun*>(*most->evictable.begin());
  }

 private:
  // Least recently used first, and among equals the deeper run, as Lru ranks.
  using Rank = std::tuple<uint64_t, int64_t, CacheRun*>;
  struct Share {
    int64_t blocks = 0;
    std::set<Rank> evictable;
  };

  static Rank RankOf(CacheRun& run) { return {run.stats.used, -run.depth, &run}; }
  // Above 0: more than an equal share of the blocks.
  int64_t Excess(const Share& share) const {
    return share.blocks * static_cast<int64_t>(shares_.size()) - blocks_;
  }

  const std::unique_ptr<CachePolicy> policy_;
  const Duration kept_;
  std::map<uint64_t, Share> shares_;  // by tenant; only those that have blocks
  int64_t blocks_ = 0;                // of all tenants
};

}  // namespace

uint64_t TenantNumber(std::string_view tenant_id) {
  // FNV-1a: ids are digests, and equal numbers in all processes keep runs of a test equal.
  uint64_t number = 14695981039346656037u;
  for (const char byte : tenant_id) number = (number ^ static_cast<uint8_t>(byte)) * 1099511628211u;
  return tenant_id.empty() ? 0 : number | 1;
}

std::unique_ptr<CachePolicy> MakeFairShares(std::unique_ptr<CachePolicy> policy, Duration kept) {
  return std::make_unique<FairShares>(std::move(policy), kept);
}

}  // namespace penstock
