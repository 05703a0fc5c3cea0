#include "kvstore/cache/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {

// A radix-tree node: a run of blocks and its child runs. A root has no blocks and is never listed.
struct PrefixCache::Node : CacheRun {
  Node* parent = nullptr;  // nullptr for a root
  Node* root = nullptr;
  std::vector<BlockId> ids;
  std::vector<BlockRef> pages;
  Children children;         // by the first id of the child's run
  TimePoint pinned_until{};  // the epoch: not pinned
  bool listed = false;
  // The following fields are used in roots only.
  BlockId name;
  int64_t pinned_below = 0;  // blocks
  std::string pins_tenant;   // whose quota pays for them

  bool is_root() const { return parent == nullptr; }
  bool pinned() const { return pinned_until != TimePoint(); }
  const BlockId& last_id() const { return is_root() ? name : ids.back(); }
};

PrefixCache::PrefixCache(BlockPool& pool, std::unique_ptr<CachePolicy> policy, Options options,
                         PrefixCacheObserver* observer)
    : pool_(pool), policy_(std::move(policy)), options_(options), observer_(observer) {}

PrefixCache::~PrefixCache() {
  // Iterative, because long conversations make deep trees that would overflow the stack.
  std::vector<std::unique_ptr<Node>> nodes;
  for (auto& [id, root] : roots_) nodes.push_back(std::move(root));
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    for (auto& [id, child] : node->children) nodes.push_back(std::move(child));
    pool_.SetCached(node->pages, false);
  }
}

// Look-up.

// Longest-prefix match in a path-compressed radix tree (Morrison: PATRICIA, 1968; for KV:
// RadixAttention in SGLang, Zheng et al., 2024). One hash look-up for each run, then a comparison
// of ids within the run.
PrefixCache::Position PrefixCache::Walk(const BlockId& root, std::span<const BlockId> ids) const {
  const auto start = roots_.find(root);
  if (start == roots_.end()) return {};
  Position at{.node = start->second.get()};
  while (at.blocks < ids.size()) {
    const auto next = at.node->children.find(ids[at.blocks]);
    if (next == at.node->children.end()) break;
    at.node = next->second.get();
    const auto rest = ids.subspan(at.blocks);
    const std::vector<BlockId>& run = at.node->ids;
    at.in_run = static_cast<size_t>(
        std::mismatch(run.begin(), run.end(), rest.begin(), rest.end()).first - run.begin());
    at.blocks += at.in_run;
    if (at.in_run < run.size()) break;
  }
  return at;
}

std::vector<BlockRef> PrefixCache::Share(const BlockId& root, std::span<const BlockId> ids,
                                         size_t first) const {
  const Position end = Walk(root, ids);
  std::vector<BlockRef> blocks;
  if (end.blocks == 0) return blocks;
  std::vector<std::span<const BlockRef>> runs{
      std::span<const BlockRef>(end.node->pages).first(end.in_run)};
  for (const Node* node = end.node->parent; !node->is_root(); node = node->parent) {
    runs.push_back(node->pages);
  }
  blocks.reserve(end.blocks);
  for (size_t i = runs.size(); i-- > 0;) {
    const size_t passed = std::min(runs[i].size(), first - std::min(first, blocks.size()));
    blocks.resize(blocks.size() + passed);
    for (BlockRef& block : pool_.Share(runs[i].subspan(passed))) blocks.push_back(std::move(block));
  }
  return blocks;
}

CacheAccess PrefixCache::Use(const BlockId& root, std::span<const BlockId> ids, TimePoint now,
                             std::optional<size_t> taken) {
  const CacheAccess access{.number = ++accesses_, .at = now};
  ++counts_.lookups;
  counts_.asked += ids.size();
  const Position end = Walk(root, ids);
  counts_.hit += std::min(end.blocks, taken.value_or(end.blocks));
  if (end.blocks > 0) UseAll(CutAt(end), access);
  return access;
}

PrefixCache::Found PrefixCache::Lookup(const BlockId& root, std::span<const BlockId> ids,
                                       TimePoint now) {
  std::vector<BlockRef> blocks = Share(root, ids);
  return {.access = Use(root, ids, now), .blocks = std::move(blocks)};
}

int64_t PrefixCache::CountLeading(const BlockId& root, std::span<const BlockId> ids) const {
  return static_cast<int64_t>(Walk(root, ids).blocks);
}

// Insertion.

void PrefixCache::Insert(const CacheAccess& access, const BlockId& root,
                         std::span<const BlockId> ids, std::span<BlockRef> blocks) {
  PENSTOCK_CHECK_EQ(ids.size(), blocks.size());
  if (ids.empty()) return;
  Position end = Walk(root, ids);
  if (end.node == nullptr) end.node = RootFor(root);
  Node* node = CutAt(end);
  UseAll(node, access);
  // A sequence with a window counts the blocks that it may hold; one that it shared with others
  // would not come free when its window passes it.
  if (pool_.view().layout.window == 0) Adopt(node, blocks.first(end.blocks));
  if (end.blocks < blocks.size()) PENSTOCK_CHECK(blocks[end.blocks]);
  std::vector<CacheRunStats> stats;
  for (const BlockId& id : ids.subspan(end.blocks)) stats.push_back(policy_->Admit(id, access));
  // Neighbouring blocks with equal statistics become one run.
  for (size_t first = 0; first < stats.size();) {
    size_t last = first + 1;
    while (last < stats.size() && stats[last] == stats[first]) ++last;
    const size_t begin = end.blocks + first;
    node = Append(node, stats[first], ids.subspan(begin, last - first),
                  blocks.subspan(begin, last - first));
    first = last;
  }
}

PrefixCache::Node* PrefixCache::RootFor(const BlockId& root) {
  std::unique_ptr<Node>& node = roots_[root];
  if (node == nullptr) {
    node = std::make_unique<Node>();
    node->name = root;
    node->root = node.get();
  }
  return node.get();
}

// The node that ends at `position`; splits a run when the position is inside it.
PrefixCache::Node* PrefixCache::CutAt(const Position& position) {
  Node* node = position.node;
  if (node->is_root() || position.in_run == node->ids.size()) return node;
  return Split(node, position.in_run);
}

// Splits a run of the radix tree: its first `blocks` blocks become a new node, which is returned
// and becomes the parent of `node`. `node` keeps the end of the run and its children, so pointers
// to it stay valid.
PrefixCache::Node* PrefixCache::Split(Node* node, size_t blocks) {
  PENSTOCK_CHECK(blocks > 0 && blocks < node->ids.size());
  const auto cut = static_cast<std::ptrdiff_t>(blocks);
  Unlist(node);
  auto head = std::make_unique<Node>();
  head->stats = node->stats;
  head->parent = node->parent;
  head->root = node->root;
  head->ids.assign(node->ids.begin(), node->ids.begin() + cut);
  head->pages.assign(std::make_move_iterator(node->pages.begin()),
                     std::make_move_iterator(node->pages.begin() + cut));
  head->blocks = static_cast<int64_t>(blocks);
  node->ids.erase(node->ids.begin(), node->ids.begin() + cut);
  node->pages.erase(node->pages.begin(), node->pages.begin() + cut);
  node->blocks -= head->blocks;
  head->depth = node->depth - node->blocks;
  std::unique_ptr<Node>& slot = node->parent->children.at(head->ids.front());
  std::unique_ptr<Node> tail = std::exchange(slot, std::move(head));
  Node* const above = slot.get();
  node->parent = above;
  above->children.emplace(node->ids.front(), std::move(tail));
  ++runs_;
  if (node->pinned()) {  // The pinned totals stay: the two nodes have the blocks of the old one.
    above->pinned_until = node->pinned_until;
    pins_.insert({above->pinned_until, above});
  }
  List(node);
  List(above);
  return above;
}

// Counts the access once for each node on the path to the root, even when the access passes it
// twice.
void PrefixCache::UseAll(Node* node, const CacheAccess& access) {
  for (; !node->is_root(); node = node->parent) {
    if (node->stats.used >= access.number) continue;
    Unlist(node);
    policy_->Use(*node, access);
    List(node);
  }
}

// Replaces `blocks` by the pages that the tree already has for the same ids, so that duplicates are
// freed.
void PrefixCache::Adopt(Node* last, std::span<BlockRef> blocks) {
  size_t end = blocks.size();
  for (Node* node = last; !node->is_root(); node = node->parent) {
    const auto own = blocks.subspan(end - node->pages.size(), node->pages.size());
    end -= node->pages.size();
    for (size_t i = 0; i < own.size(); ++i) {
      if (own[i].id() != node->pages[i].id()) AdoptOne(node->pages[i], own[i]);
    }
  }
  PENSTOCK_CHECK_EQ(end, 0u);
}

// Two pages have the same KV: `cached`, and `block`, which a sequence has computed.
void PrefixCache::AdoptOne(BlockRef& cached, BlockRef& block) {
  if (pool_.Replace(block, cached)) return;
  pool_.PassOnWant(cached, block);
  pool_.SetCached({&cached, 1}, false);
  cached = block.ShareWithoutRow();
  pool_.SetCached({&cached, 1}, true);
}

PrefixCache::Node* PrefixCache::Append(Node* node, const CacheRunStats& stats,
                                       std::span<const BlockId> ids,
                                       std::span<const BlockRef> blocks) {
  if (observer_ != nullptr) observer_->OnStored(node->last_id(), ids);
  counts_.stored += ids.size();
  blocks_ += static_cast<int64_t>(ids.size());
  known_.insert(ids.begin(), ids.end());
  const bool grows =
      !node->is_root() && node->children.empty() && !node->pinned() && node->stats == stats;
  if (grows) {
    Unlist(node);
    Extend(node, ids, blocks);
    List(node);
    return node;
  }
  Unlist(node);  // `node` gets a child and is no leaf any more.
  auto made = std::make_unique<Node>();
  Node* const child = made.get();
  child->stats = stats;
  child->parent = node;
  child->root = node->root;
  child->depth = node->depth;
  ++runs_;
  Extend(child, ids, blocks);
  node->children.emplace(ids.front(), std::move(made));
  List(node);
  List(child);
  return child;
}

void PrefixCache::Extend(Node* node, std::span<const BlockId> ids,
                         std::span<const BlockRef> blocks) {
  std::vector<BlockRef> pages = pool_.ShareWithoutRows(blocks);
  pool_.SetCached(pages, true);
  node->ids.insert(node->ids.end(), ids.begin(), ids.end());
  std::move(pages.begin(), pages.end(), std::back_inserter(node->pages));
  node->blocks += static_cast<int64_t>(ids.size());
  node->depth += static_cast<int64_t>(ids.size());
}

// Eviction.

int64_t PrefixCache::Evict(int64_t blocks, TimePoint now) {
  const int64_t evicted = EvictUnpinned(blocks, now);
  return evicted + EvictPinned(blocks - evicted);
}

// Leaf-first eviction: the policy chooses a leaf, and blocks go from the end of its run, as in
// RadixAttention (SGLang). Blocks that a sequence still uses stay.
int64_t PrefixCache::EvictUnpinned(int64_t blocks, TimePoint now) {
  EndPins(now);
  // When every block is in use, this skips the search.
  blocks = std::min(blocks, pool_.blocks_cached());
  int64_t evicted = 0;
  std::vector<Node*> in_use;
  while (evicted < blocks) {
    CacheRun* const run = policy_->Victim(now);
    if (run == nullptr) break;
    auto* const node = static_cast<Node*>(run);
    const int64_t gone = EvictTail(node, blocks - evicted);
    evicted += gone;
    if (gone == 0 && CutUsedTail(node)) continue;
    if (gone == 0) {  // Every block of the leaf is in use: exclude it until this call ends.
      policy_->Unlist(*node);
      node->evictable = false;
      policy_->List(*node);
      in_use.push_back(node);
    }
  }
  for (Node* node : in_use) {
    Unlist(node);
    List(node);
  }
  return evicted;
}

// Last resort: evicts pinned leaves, those with the earliest end of pinning first.
int64_t PrefixCache::EvictPinned(int64_t blocks) {
  int64_t evicted = 0;
  for (bool found = true; found && evicted < blocks;) {
    found = false;
    for (auto pin = pins_.begin(); pin != pins_.end() && evicted < blocks;) {
      Node* const node = (pin++)->second;  // Advance first: EvictTail may remove the node.
      if (!node->children.empty()) continue;
      const int64_t gone = EvictTail(node, blocks - evicted);
      evicted += gone;
      found |= gone > 0 || CutUsedTail(node);
    }
  }
  counts_.evicted_pinned += static_cast<uint64_t>(evicted);
  return evicted;
}

bool PrefixCache::MakeRoom(int64_t blocks, int64_t ahead, TimePoint now) {
  // Blocks that are being copied to a lower tier become free without further eviction.
  const int64_t wanting = blocks - pool_.blocks_free() - pool_.blocks_leaving();
  const int64_t evicted = wanting + ahead > 0 ? EvictUnpinned(wanting + ahead, now) : 0;
  if (evicted < wanting) EvictPinned(wanting - evicted);
  return pool_.blocks_free() >= blocks;
}

void PrefixCache::Clear(TimePoint now) { Evict(blocks_, now); }

// Evicts up to `blocks` blocks from the end of a leaf. Stops at the first block that has another
// reference.
int64_t PrefixCache::EvictTail(Node* node, int64_t blocks) {
  const auto wanted = std::min<size_t>(static_cast<size_t>(blocks), node->pages.size());
  const size_t count = pool_.IdleTail(std::span<const BlockRef>(node->pages).last(wanted));
  TakeOffTail(node, count, /*in_use=*/false);
  return static_cast<int64_t>(count);
}

// Takes the end of a leaf that sequences use off the tree, if there are blocks before it that none
// uses: they can be evicted then. The sequences keep their blocks.
bool PrefixCache::CutUsedTail(Node* node) {
  if (pool_.view().layout.window == 0) return false;  // A sequence uses its leading blocks, too.
  const size_t used = pool_.UsedTail(node->pages);
  const Node* idle = node;
  while (!idle->is_root() && pool_.UsedTail(idle->pages) == idle->pages.size()) {
    idle = idle->parent;
  }
  if (used == 0 || idle->is_root()) return false;
  TakeOffTail(node, used, /*in_use=*/true);
  return true;
}

// Takes the last `count` blocks off a leaf, all of them idle or all of them in use.
void PrefixCache::TakeOffTail(Node* node, size_t count, bool in_use) {
  if (count == 0) return;
  Unlist(node);
  const size_t kept = node->ids.size() - count;
  const auto ids = std::span<const BlockId>(node->ids).subspan(kept);
  const auto pages = std::span<const BlockRef>(node->pages).subspan(kept);
  const BlockId& parent = kept > 0 ? node->ids[kept - 1] : node->parent->last_id();
  if (observer_ != nullptr) observer_->OnEvicted(parent, ids, pages, node->stats.uses);
  policy_->OnEvicted(*node, ids);
  for (const BlockId& id : ids) known_.erase(id);
  if (in_use) {
    pool_.SetCached(pages, false);
  } else {
    pool_.SetLeaving(pages);
  }
  const auto gone = static_cast<int64_t>(count);
  if (node->pinned()) CountPinned(node, -gone);
  blocks_ -= gone;
  counts_.evicted += count;
  node->pages.resize(kept);
  if (kept == 0) return Remove(node);
  node->ids.resize(kept);
  node->blocks -= gone;
  node->depth -= gone;
  List(node);
}

// Removes an empty node, which is not listed and has no children. Its parent may become a leaf.
void PrefixCache::Remove(Node* node) {
  Node* const parent = node->parent;
  if (node->pinned()) pins_.erase({node->pinned_until, node});
  --runs_;
  Unlist(parent);
  parent->children.erase(BlockId(node->ids.front()));
  List(parent);
  if (parent->is_root() && parent->children.empty()) roots_.erase(BlockId(parent->name));
}

void PrefixCache::List(Node* node) {
  if (node->is_root()) return;
  node->evictable = node->children.empty() && !node->pinned();
  node->listed = true;
  policy_->List(*node);
}

void PrefixCache::Unlist(Node* node) {
  if (!node->listed) return;
  node->listed = false;
  policy_->Unlist(*node);
}

// Pinning.

int64_t PrefixCache::Pin(const BlockId& root, std::span<const BlockId> ids, const PinTerms& terms,
                         TimePoint now) {
  EndPins(now);
  const Position end = Walk(root, ids);
  if (end.blocks == 0 || terms.until <= now) return 0;
  std::vector<Node*> path;
  for (Node* node = CutAt(end); !node->is_root(); node = node->parent) path.push_back(node);
  // A namespace belongs to one tenant, which may have any number of them.
  Node* const space = path.back()->root;
  if (space->pinned_below == 0) space->pins_tenant = terms.tenant;
  int64_t room = PinRoom(space->pins_tenant);
  int64_t pinned = 0;
  for (size_t i = path.size(); i-- > 0;) {
    Node* node = path[i];
    if (!node->pinned()) {
      if (room <= 0) break;
      if (node->blocks > room) node = Split(node, static_cast<size_t>(room));
      room -= node->blocks;
    }
    pinned += node->blocks;
    SetPin(node, std::max(terms.until, node->pinned_until));
  }
  return pinned;
}

// The number of blocks that `tenant` may pin now.
int64_t PrefixCache::PinRoom(const std::string& tenant) const {
  const auto of_tenant = pinned_of_.find(tenant);
  const int64_t has = of_tenant == pinned_of_.end() ? 0 : of_tenant->second;
  return std::min(options_.pinned_max - pinned_, options_.pinned_max_of_tenant - has);
}

void PrefixCache::SetPin(Node* node, TimePoint until) {
  Unlist(node);
  if (node->pinned()) {
    pins_.erase({node->pinned_until, node});
  } else {
    CountPinned(node, node->blocks);
  }
  node->pinned_until = until;
  pins_.insert({until, node});
  List(node);
}

// Counts `blocks` more (or fewer) pinned blocks of the run.
void PrefixCache::CountPinned(Node* node, int64_t blocks) {
  pinned_ += blocks;
  node->root->pinned_below += blocks;
  const auto of_tenant = pinned_of_.try_emplace(node->root->pins_tenant, 0).first;
  of_tenant->second += blocks;
  if (of_tenant->second == 0) pinned_of_.erase(of_tenant);
}

void PrefixCache::EndPins(TimePoint now) {
  while (!pins_.empty() && pins_.begin()->first <= now) {
    Node* const node = pins_.begin()->second;
    pins_.erase(pins_.begin());
    Unlist(node);
    node->pinned_until = TimePoint();
    CountPinned(node, -node->blocks);
    List(node);
  }
}

void PrefixCache::ForEachRun(const Visitor& visit) const {
  std::vector<const Node*> nodes;
  for (const auto& [id, root] : roots_) nodes.push_back(root.get());
  while (!nodes.empty()) {
    const Node* const node = nodes.back();
    nodes.pop_back();
    if (!node->is_root()) visit(node->parent->last_id(), node->ids);
    for (const auto& [id, child] : node->children) nodes.push_back(child.get());
  }
}

}  // namespace penstock
