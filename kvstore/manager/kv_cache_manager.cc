#include "kvstore/manager/kv_cache_manager.h"

#include <algorithm>
#include <utility>

#include "kvstore/cache/complete_hit.h"
#include "kvstore/cache/fair_shares.h"

namespace penstock {
namespace {

// See MakeFairShares: the time after its last use that a tenant within its share keeps a block.
constexpr Duration kKeptForTenants = std::chrono::minutes(10);

int64_t ShareOf(const BlockPool& pool, double share) {
  return static_cast<int64_t>(share * static_cast<double>(pool.blocks_total()));
}

v1::KvTier TierOf(Tier tier) { return tier == Tier::kDram ? v1::DRAM : v1::NVME; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvCacheManager>> KvCacheManager::Create(BlockPool& pool,
                                                                       const Clock& clock,
                                                                       Options options) {
  ASSIGN_OR_RETURN(auto policy, MakeCachePolicy(options.policy, pool.blocks_total()));
  return std::unique_ptr<KvCacheManager>(new KvCacheManager(
      pool, clock, std::move(options), MakeFairShares(std::move(policy), kKeptForTenants)));
}

KvCacheManager::KvCacheManager(BlockPool& pool, const Clock& clock, Options options,
                               std::unique_ptr<CachePolicy> policy)
    : pool_(pool),
      clock_(clock),
      options_(std::move(options)),
      shared_root_(RootBlockId({.model_fingerprint = options_.model_fingerprint,
                                .kv_format = options_.kv_format,
                                .tenant_salt = "",
                                .provenance = ""})),
      tokens_(options_.keep_tokens ? std::make_unique<BlockTokens>(pool.view().layout.block_tokens)
                                   : nullptr),
      cache_(pool, std::move(policy),
             {.pinned_max = ShareOf(pool, options_.pinned_share),
              .pinned_max_of_tenant = ShareOf(pool, options_.pinned_share_of_tenant)},
             this) {}

PromptBlocks KvCacheManager::NameBlocks(std::string_view cache_salt,
                                        std::span<const uint32_t> tokens,
                                        std::string_view provenance) const {
  PromptBlocks prompt;
  prompt.root = RootBlockId({.model_fingerprint = options_.model_fingerprint,
                             .kv_format = options_.kv_format,
                             .tenant_salt = std::string(cache_salt),
                             .provenance = std::string(provenance)});
  const int32_t block_tokens = pool_.view().layout.block_tokens;
  prompt.ids = HashBlocks(prompt.root, tokens, block_tokens);
  const BlockId& last = prompt.ids.empty() ? prompt.root : prompt.ids.back();
  const size_t full = prompt.ids.size() * block_tokens;
  prompt.whole = ChildBlockId(last, tokens.subspan(full));
  if (KeepsTokensOf(prompt)) {
    prompt.tokens.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(full));
  }
  return prompt;
}

void KvCacheManager::Extend(PromptBlocks& prompt, std::span<const uint32_t> tokens) const {
  const auto block_tokens = static_cast<size_t>(pool_.view().layout.block_tokens);
  const BlockId last = prompt.ids.empty() ? prompt.root : prompt.ids.back();
  const std::vector<BlockId> more = HashBlocks(last, tokens, pool_.view().layout.block_tokens);
  prompt.ids.insert(prompt.ids.end(), more.begin(), more.end());
  if (!KeepsTokensOf(prompt)) return;
  const auto full = tokens.first(more.size() * block_tokens);
  prompt.tokens.insert(prompt.tokens.end(), full.begin(), full.end());
}

std::optional<CacheAdmission> KvCacheManager::Admit(const PromptBlocks& prompt,
                                                    const CacheRequest& request) {
  const TimePoint now = clock_.Now();
  // With a window, a request needs few of the blocks that it may find.
  const bool window = pool_.view().layout.window > 0;
  const int64_t found_max = window ? std::ssize(prompt.ids) : request.blocks;
  const auto max = static_cast<size_t>(std::clamp<int64_t>(request.held_max, 0, found_max));
  const auto ids = std::span(prompt.ids).first(std::min(max, prompt.ids.size()));
  MutexLock lock(mutex_);
  // The references are taken before anything is evicted; the use is counted only if admission
  // succeeds.
  const int64_t obtainable = pool_.blocks_obtainable();
  BlockCredit rows;
  rows.SetQuota(pool_.ReserveRows(request.rows, request.rows_left));
  if (!rows.has_quota()) return std::nullopt;
  auto here = static_cast<size_t>(cache_.CountLeading(prompt.root, ids));
  FindResult below = FindBelow(ids.subspan(here));
  const size_t first = FirstNeeded(request, here + below.blocks);
  std::vector<BlockRef> held;
  if (first < here) held = cache_.Share(prompt.root, ids.first(here), first);
  if (!pool_.view().layout.group.empty()) here = HoldComplete(request, held, below, rows);
  const int64_t wanted = std::max<int64_t>(0, request.blocks - CountedAsHeld(request, held, first));
  const int64_t left = request.left + owed_;
  std::optional<BlockCredit> credit;
  if (wanted == 0 || pool_.blocks_obtainable() >= wanted + left) {
    credit = ReserveLocked(wanted, wanted > 0 ? left : 0);
  }
  if (!credit) {
    pool_.DropShared(std::move(held), obtainable);
    rows.DropQuota();
    return std::nullopt;
  }
  credit->Merge(std::move(rows));
  CacheAdmission admission{.access = cache_.Use(prompt.root, ids, now, here),
                           .held = std::move(held),
                           .credit = *std::move(credit),
                           .received = request.received};
  admission.access.tenant = TenantNumber(prompt.tenant);
  const size_t begin = std::max(here, first);
  const auto restored =
      ids.first(here + below.blocks).subspan(std::min(begin, here + below.blocks));
  CountMissed(ids.size() - here, below);
  if (store_ != nullptr) store_->Touch(ids.first(here));
  if (!restored.empty()) {
    admission.held.resize(begin);
    StartRestore(restored, request.on_restored, &admission);
  }
  return admission;
}

// The first of the blocks that lower tiers have.
FindResult KvCacheManager::FindBelow(std::span<const BlockId> ids) const {
  if (store_ == nullptr || ids.empty() || !options_.keeps_blocks) return {};
  return store_->Find(ids);
}

// The first block that a request needs when the KV of its first `found` blocks is present.
size_t KvCacheManager::FirstNeeded(const CacheRequest& request, size_t found) const {
  const KvLayout& layout = pool_.view().layout;
  const int64_t next = static_cast<int64_t>(found) * layout.block_tokens;
  return static_cast<size_t>(layout.FirstBlock(std::max(next, request.received)));
}

// Shortens what was found to a prefix behind which the request can go on (CompleteHit), and holds
// the rows of its cached blocks. Returns the number of these.
size_t KvCacheManager::HoldComplete(const CacheRequest& request, std::vector<BlockRef>& held,
                                    FindResult& below, BlockCredit& quota) const {
  const KvLayout& layout = pool_.view().layout;
  const int64_t end = std::ssize(held) * layout.block_tokens;
  const auto wanted = static_cast<size_t>(layout.FirstGroupBlock(std::max(end, request.received)));
  if (wanted < held.size()) pool_.WantRows(std::span(held).subspan(wanted));
  for (;;) {
    std::vector<bool> whole = pool_.HaveRows(held);
    whole.insert(whole.end(), below.whole.begin(), below.whole.end());
    const size_t depth = CompleteHit(whole, layout, request.received);
    below.blocks = depth - std::min(depth, held.size());
    below.whole.resize(below.blocks);
    held.resize(std::min(depth, held.size()));
    const int64_t next = static_cast<int64_t>(depth) * layout.block_tokens;
    const auto first =
        static_cast<size_t>(layout.FirstGroupBlock(std::max(next, request.received)));
    // Another thread may have taken an idle row since.
    if (quota.TryHoldRows(std::span(held).subspan(std::min(first, held.size())))) break;
  }
  below.dram = std::min(below.dram, below.blocks);
  below.nvme = below.blocks - below.dram;
  return held.size();
}

// The part of a request's blocks that its held blocks are. One that exchanges blocks gets none in
// the place of a held block that others use: so these do not count.
int64_t KvCacheManager::CountedAsHeld(const CacheRequest& request, std::span<const BlockRef> held,
                                      size_t first) const {
  if (held.empty()) return 0;
  const auto live = held.subspan(first);
  return request.exchanges ? pool_.CountOwn(live) : static_cast<int64_t>(live.size());
}

void KvCacheManager::Exchange(std::vector<BlockRef> passed, int64_t credit_wanted,
                              BlockCredit& credit, OwedBlocks& owed) {
  MutexLock lock(mutex_);
  passed.clear();
  while (credit.blocks() < credit_wanted) {
    std::optional<BlockCredit> more = ReserveLocked(1, 0);
    if (!more) break;
    credit.Merge(*std::move(more));
  }
  const int64_t missing = std::max<int64_t>(0, credit_wanted - credit.blocks());
  owed_ += missing - owed.blocks_;
  owed.blocks_ = missing;
  owed.manager_ = this;
}

void KvCacheManager::Forgive(int64_t owed) {
  MutexLock lock(mutex_);
  owed_ -= owed;
}

OwedBlocks::~OwedBlocks() {
  if (blocks_ > 0) manager_->Forgive(blocks_);
}

std::optional<BlockCredit> KvCacheManager::Reserve(int64_t blocks, int64_t ahead) {
  MutexLock lock(mutex_);
  return ReserveLocked(blocks, ahead);
}

std::optional<BlockCredit> KvCacheManager::ReserveLocked(int64_t blocks, int64_t ahead) {
  cache_.MakeRoom(blocks, ahead, clock_.Now());
  absl::StatusOr<BlockCredit> credit = pool_.Reserve(blocks);
  if (!credit.ok()) return std::nullopt;
  return *std::move(credit);
}

// Restoring from lower tiers.

void CacheRestore::Finish(RestoreResult result) {
  MutexLock lock(mutex_);
  result_ = std::move(result);
}

std::optional<RestoreResult> CacheRestore::Take() {
  MutexLock lock(mutex_);
  return std::exchange(result_, std::nullopt);
}

// `asked` blocks are not on the device, and the lower tiers have `below`.
void KvCacheManager::CountMissed(size_t asked, const FindResult& below) {
  missed_[0] += asked;
  missed_[1] += asked - below.dram;
  missed_[2] += asked - below.blocks;
}

void KvCacheManager::StartRestore(std::span<const BlockId> ids,
                                  const std::function<void()>& on_restored,
                                  CacheAdmission* admission) {
  admission->restore = std::make_shared<CacheRestore>(ids.size());
  std::vector<BlockRef> pages = admission->credit.Take(static_cast<int64_t>(ids.size()));
  const KvLayout& layout = pool_.view().layout;
  const size_t depth = admission->held.size() + ids.size();
  const int64_t next = static_cast<int64_t>(depth) * layout.block_tokens;
  const int64_t first =
      layout.FirstGroupBlock(std::max(next, admission->received)) - std::ssize(admission->held);
  admission->credit.MoveWindow(pages, std::clamp<int64_t>(first, 0, std::ssize(pages)),
                               std::ssize(pages));
  store_->Restore({ids.begin(), ids.end()}, std::move(pages),
                  [restore = admission->restore, on_restored](RestoreResult result) {
                    restore->Finish(std::move(result));
                    if (on_restored) on_restored();
                  });
}

int64_t KvCacheManager::Pin(const PromptBlocks& prompt, const PrefixPins& pins) {
  if (pins.pins.empty()) return 0;  // The common case takes no lock.
  const int64_t block_tokens = pool_.view().layout.block_tokens;
  const TimePoint now = clock_.Now();
  int64_t max = 0;
  MutexLock lock(mutex_);
  for (const PrefixPin& pin : pins.pins) {
    const size_t blocks =
        std::min(prompt.ids.size(), static_cast<size_t>(pin.tokens / block_tokens));
    max = std::max(max, cache_.Pin(prompt.root, std::span(prompt.ids).first(blocks),
                                   {.tenant = pins.tenant, .until = now + pin.ttl}, now));
  }
  return max * block_tokens;
}

bool KvCacheManager::FinishRestore(const PromptBlocks& prompt,
                                   std::optional<CacheAdmission>& admission) {
  if (admission->restore == nullptr) return true;
  std::optional<RestoreResult> result = admission->restore->Take();
  if (!result) return false;
  auto missing = static_cast<int64_t>(admission->restore->asked() - result->whole);
  admission->restore = nullptr;
  std::vector<BlockRef>& held = admission->held;
  for (size_t i = 0; i < result->whole; ++i) held.push_back(std::move(result->pages[i]));
  result.reset();  // Frees the pages that were not filled.
  if (missing > 0) missing += DropIfUseless(admission->received, held);
  if (missing > 0) missing += CutIncomplete(admission->received, held);
  MutexLock lock(mutex_);
  InsertLocked(admission->access, prompt, held);
  std::optional<BlockCredit> credit = ReserveLocked(missing, 0);
  if (credit) {
    admission->credit.Merge(*std::move(credit));
  } else {
    admission.reset();
  }
  return true;
}

// A part of a restore may be useless to a sequence with a window, because earlier blocks that its
// next token sees were left out. Returns the number of blocks that were dropped.
int64_t KvCacheManager::DropIfUseless(int64_t received, std::vector<BlockRef>& held) const {
  const size_t needed = FirstNeeded({.received = received}, held.size());
  if (needed >= held.size() || held[needed]) return 0;
  const auto dropped =
      std::count_if(held.begin(), held.end(), [](const BlockRef& block) { return bool{block}; });
  held.clear();
  return dropped;
}

// Likewise of a sequence with a window group: without the blocks that were left out it may go on
// behind fewer blocks only. Returns the number of those that were dropped.
int64_t KvCacheManager::CutIncomplete(int64_t received, std::vector<BlockRef>& held) const {
  const KvLayout& layout = pool_.view().layout;
  if (layout.group.empty()) return 0;
  std::vector<bool> whole;
  for (const BlockRef& block : held) whole.push_back(block.holds_row());
  const size_t depth = CompleteHit(whole, layout, received);
  const size_t dropped = held.size() - depth;
  held.resize(depth);
  return static_cast<int64_t>(dropped);
}

bool KvCacheManager::HasInLowerTier(const PromptBlocks& prompt, int64_t held_max) const {
  const auto ids =
      std::span(prompt.ids).first(std::min(static_cast<size_t>(held_max), prompt.ids.size()));
  MutexLock lock(mutex_);
  const auto rest = ids.subspan(static_cast<size_t>(cache_.CountLeading(prompt.root, ids)));
  return FindBelow(rest.first(std::min<size_t>(1, rest.size()))).blocks > 0;
}

int64_t KvCacheManager::CountLeading(const PromptBlocks& prompt) const {
  const std::span<const BlockId> ids(prompt.ids);
  MutexLock lock(mutex_);
  const int64_t here = cache_.CountLeading(prompt.root, ids);
  return here + static_cast<int64_t>(FindBelow(ids.subspan(static_cast<size_t>(here))).blocks);
}

void KvCacheManager::Insert(const CacheAccess& access, const PromptBlocks& prompt,
                            std::span<BlockRef> blocks) {
  MutexLock lock(mutex_);
  InsertLocked(access, prompt, blocks);
}

void KvCacheManager::InsertLocked(const CacheAccess& access, const PromptBlocks& prompt,
                                  std::span<BlockRef> blocks) {
  if (!options_.keeps_blocks) return;
  const auto ids = std::span(prompt.ids).first(blocks.size());
  if (LacksParents(prompt.root, ids, blocks)) return;
  // Before readers are told of the blocks.
  if (!prompt.tokens.empty()) tokens_->Keep(prompt.root, ids, prompt.tokens);
  cache_.Insert(access, prompt.root, ids, blocks);
}

// True if a window has passed the first of `blocks`, and the cache has lost some of those since.
bool KvCacheManager::LacksParents(const BlockId& root, std::span<const BlockId> ids,
                                  std::span<const BlockRef> blocks) const {
  if (blocks.empty() || blocks.front()) return false;
  const auto first =
      std::find_if(blocks.begin(), blocks.end(), [](const BlockRef& block) { return bool{block}; });
  return cache_.CountLeading(root, ids) < first - blocks.begin();
}

// Lower tiers and events.

void KvCacheManager::AttachStore(TieredStore* store) {
  MutexLock lock(mutex_);
  store_ = store;
}

void KvCacheManager::OnStored(const BlockId& parent, std::span<const BlockId> ids) {
  AnnounceStored(parent, ids);
}

void KvCacheManager::OnEvicted(const BlockId& parent, std::span<const BlockId> ids,
                               std::span<const BlockRef> pages, uint32_t uses) {
  OfferToStore(parent, ids, pages, uses);
  if (tokens_ != nullptr) tokens_->LeaveDevice(ids);
  AnnounceEvicted(ids);
}

void KvCacheManager::AnnounceStored(const BlockId& parent, std::span<const BlockId> ids) {
  if (!feed_.wanted()) return;
  // Readers know the blocks that a lower tier serves. Only their tier changes.
  size_t first = 0;
  while (first < ids.size()) {
    const bool known = lower_tiers_.contains(ids[first]);
    size_t last = first + 1;
    while (last < ids.size() && lower_tiers_.contains(ids[last]) == known) ++last;
    const auto run = ids.subspan(first, last - first);
    const BlockId& above = first == 0 ? parent : ids[first - 1];
    feed_.Publish(known ? MovedEvent(run, v1::DEVICE) : StoredEvent(above, run, v1::DEVICE));
    first = last;
  }
}

void KvCacheManager::OfferToStore(const BlockId& parent, std::span<const BlockId> ids,
                                  std::span<const BlockRef> pages, uint32_t uses) {
  if (store_ == nullptr || clearing_) return;
  // Leaves first, so that lower tiers evict them first, too.
  for (size_t i = ids.size(); i-- > 0;) {
    if (lower_tiers_.contains(ids[i])) continue;
    const BlockId& above = i == 0 ? parent : ids[i - 1];
    BlockRef page = pool_.ShareToCopy(pages[i]);
    const KvLayout& layout = pool_.view().layout;
    const bool partial = !layout.group.empty() && (layout.span > 0 || !page.holds_row());
    const bool taken = store_->Spill({.name = {.id = ids[i], .parent = above},
                                      .page = std::move(page),
                                      .uses = uses,
                                      .partial = partial});
    // The store's queue is full; it would refuse the blocks nearer the root as well.
    if (!taken) return;
  }
}

void KvCacheManager::AnnounceEvicted(std::span<const BlockId> ids) {
  if (!feed_.wanted()) return;
  for (const BlockId& id : ids) {
    const auto below = lower_tiers_.find(id);
    const std::span<const BlockId> one(&id, 1);
    feed_.Publish(below == lower_tiers_.end() ? RemovedEvent(one)
                                              : MovedEvent(one, TierOf(below->second.tier)));
  }
}

void KvCacheManager::OnStoreEvent(const BlockEvent& event) {
  MutexLock lock(mutex_);
  const BlockId& id = event.name.id;
  const std::span<const BlockId> one(&id, 1);
  const bool on_device = cache_.Contains(id);
  const bool known = lower_tiers_.contains(id);
  if (tokens_ != nullptr) tokens_->ServeBelow(id, event.tier.has_value());
  if (event.tier) {
    lower_tiers_[id] = {.parent = event.name.parent, .tier = *event.tier};
    if (on_device) return;
    feed_.Publish(known ? MovedEvent(one, TierOf(*event.tier))
                        : StoredEvent(event.name.parent, one, TierOf(*event.tier)));
  } else if (lower_tiers_.erase(id) > 0 && !on_device) {
    feed_.Publish(RemovedEvent(one));
  }
}

std::shared_ptr<BlockSubscriber> KvCacheManager::Subscribe() {
  MutexLock lock(mutex_);
  std::vector<v1::BlockEvent> snapshot;
  cache_.ForEachRun([&](const BlockId& parent, std::span<const BlockId> ids) {
    snapshot.push_back(StoredEvent(parent, ids, v1::DEVICE));
  });
  for (const auto& [id, below] : lower_tiers_) {
    if (cache_.Contains(id)) continue;
    snapshot.push_back(StoredEvent(below.parent, {&id, 1}, TierOf(below.tier)));
  }
  return feed_.Subscribe(std::move(snapshot));
}

int64_t KvCacheManager::Clear() {
  MutexLock lock(mutex_);
  const int64_t before = cache_.blocks();
  clearing_ = true;
  cache_.Clear(clock_.Now());
  clearing_ = false;
  return before - cache_.blocks();
}

WorkerCacheStats KvCacheManager::stats() const {
  MutexLock lock(mutex_);
  return {.device = cache_.counts(), .blocks = cache_.blocks(), .missed = missed_};
}

}  // namespace penstock
