#include "router/index/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace penstock {
namespace {

// Mixes an id's bits (MurmurHash3's finalizer). Ids of real blocks are hashes already; those of
// tests and traces are small numbers.
uint64_t HashOf(const BlockId& id) {
  uint64_t low;
  uint64_t high;
  std::memcpy(&low, id.bytes.data(), 8);
  std::memcpy(&high, id.bytes.data() + 8, 8);
  uint64_t hash = low ^ (high * 0x9E3779B97F4A7C15);
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCD;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53;
  return hash ^ (hash >> 33);
}

uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash); }

// The length of the common prefix of `ids` and the run's blocks from `offset` on. The first blocks
// are equal.
uint32_t CommonLength(const PrefixRun& run, uint32_t offset, std::span<const BlockId> ids) {
  const uint32_t max = static_cast<uint32_t>(std::min<size_t>(run.length() - offset, ids.size()));
  uint32_t count = 1;
  while (count < max && run.ids()[offset + count] == ids[count]) ++count;
  return count;
}

bool HeldBy(const PrefixRun& run, uint32_t worker) {
  for (uint32_t i = 0; i < run.holdings(); ++i) {
    if (run.holding(i).worker == worker) return true;
  }
  return false;
}

uint64_t HeldBits(std::span<const RunHolding> holdings) {
  uint64_t held = 0;
  for (const RunHolding& holding : holdings) held |= holding.blocks;
  return held;
}

}  // namespace

PrefixIndex::PrefixIndex(uint64_t blocks_max) : blocks_max_(blocks_max) {
  for (std::unique_ptr<Shard>& shard : shards_) shard = std::make_unique<Shard>(epochs_);
}

PrefixIndex::~PrefixIndex() = default;

// ---------------------------------------------------------------- look-ups

BlockPlace PrefixIndex::PlaceOf(const BlockId& id) const {
  const uint64_t hash = HashOf(id);
  return ShardOf(hash).directory.Find(TagOf(hash), [&](BlockPlace place) {
    const PrefixRun* run = runs_.Get(place.run);
    return run != nullptr && run->Has(place.offset, id);
  });
}

// Longest-prefix match, run by run: one directory look-up for each run of the prompt's path. Ends
// at the first run of which no worker has all blocks that the prompt needs.
void PrefixIndex::Find(std::span<const BlockId> prompt, PrefixMatches& matches) const {
  matches.Clear();
  const EpochDomain::Guard guard(epochs_);
  for (uint32_t depth = 0; depth < prompt.size();) {
    const uint64_t hash = HashOf(prompt[depth]);
    const PrefixRun* run = nullptr;
    const BlockPlace place = ShardOf(hash).directory.Find(TagOf(hash), [&](BlockPlace candidate) {
      run = runs_.Get(candidate.run);
      return run != nullptr && run->Has(candidate.offset, prompt[depth]);
    });
    if (place.run == 0) return;
    const size_t after = depth + run->length() - place.offset;
    if (after < prompt.size()) {  // the next look-up, if the prompt has the rest of this run
      const uint64_t next = HashOf(prompt[after]);
      ShardOf(next).directory.Prefetch(TagOf(next));
    }
    const uint32_t count = CommonLength(*run, place.offset, prompt.subspan(depth));
    if (!matches.Add(*run, place.offset, count, depth)) return;
    depth += count;
  }
}

bool PrefixIndex::Holds(uint32_t worker, const BlockId& id) const {
  const EpochDomain::Guard guard(epochs_);
  const BlockPlace place = PlaceOf(id);
  const PrefixRun* run = place.run == 0 ? nullptr : runs_.Get(place.run);
  if (run == nullptr || !run->Has(place.offset, id)) return false;
  for (uint32_t i = 0; i < run->holdings(); ++i) {
    const RunHolding holding = run->holding(i);
    if (holding.worker == worker && (holding.blocks >> place.offset & 1) != 0) return true;
  }
  return false;
}

std::vector<PrefixIndex::Holder> PrefixIndex::HoldersOf(const BlockId& id, size_t max) const {
  std::vector<Holder> holders;
  const EpochDomain::Guard guard(epochs_);
  const BlockPlace place = PlaceOf(id);
  const PrefixRun* run = place.run == 0 ? nullptr : runs_.Get(place.run);
  if (run == nullptr || !run->Has(place.offset, id)) return holders;
  for (uint32_t i = 0; i < run->holdings() && holders.size() < max; ++i) {
    const RunHolding holding = run->holding(i);
    if ((holding.blocks >> place.offset & 1) != 0) {
      holders.push_back({holding.worker, holding.tier});
    }
  }
  return holders;
}

// ---------------------------------------------------------------- changes

void PrefixIndex::Store(uint32_t worker, BlockTier tier, const BlockId* parent,
                        std::span<const BlockId> ids) {
  StoreChain({Change::kStore, worker, tier}, parent, ids);
}

uint64_t PrefixIndex::Expect(uint32_t worker, const BlockId* parent, std::span<const BlockId> ids) {
  return StoreChain({Change::kExpect, worker}, parent, ids);
}

void PrefixIndex::Move(uint32_t worker, BlockTier tier, std::span<const BlockId> ids) {
  EditEach({Change::kMove, worker, tier}, ids);
}

void PrefixIndex::Remove(uint32_t worker, std::span<const BlockId> ids) {
  EditEach({Change::kRemove, worker}, ids);
}

void PrefixIndex::Unexpect(uint32_t worker, std::span<const BlockId> ids) {
  EditEach({Change::kUnexpect, worker}, ids);
}

void PrefixIndex::Clear(uint32_t worker) {
  const uint32_t end = runs_.end();
  for (uint32_t number = 1; number < end; ++number) {
    const EpochDomain::Guard guard(epochs_);
    const PrefixRun* run = runs_.Get(number);
    if (run == nullptr || !HeldBy(*run, worker)) continue;
    MutexLock lock(runs_.LockOf(number));
    run = runs_.Get(number);
    if (run == nullptr) continue;
    EditRun({Change::kRemove, worker}, number, *run, ~uint64_t{0});
  }
}

void PrefixIndex::EditEach(const Edit& edit, std::span<const BlockId> ids) {
  PENSTOCK_CHECK_LT(edit.worker, kIndexWorkersMax);
  const EpochDomain::Guard guard(epochs_);
  for (size_t i = 0; i < ids.size();) {
    const BlockPlace place = PlaceOf(ids[i]);
    i += place.run == 0 ? 1 : EditKnown(edit, place, ids.subspan(i)).taken;
  }
}

uint64_t PrefixIndex::StoreChain(const Edit& edit, const BlockId* parent,
                                 std::span<const BlockId> ids) {
  PENSTOCK_CHECK_LT(edit.worker, kIndexWorkersMax);
  const EpochDomain::Guard guard(epochs_);
  uint64_t gained = 0;
  for (size_t i = 0; i < ids.size();) {
    const BlockPlace place = PlaceOf(ids[i]);
    Edited edited;
    if (place.run != 0) {
      edited = EditKnown(edit, place, ids.subspan(i));
    } else {
      size_t end = i + 1;
      const size_t max = std::min<size_t>(ids.size(), i + BlockPlace::kRunMax);
      while (end < max && PlaceOf(ids[end]).run == 0) ++end;
      edited = AddNew(edit, i == 0 ? parent : &ids[i - 1], ids.subspan(i, end - i));
    }
    i += edited.taken;  // 0: another thread changed the index meanwhile; look up again
    gained += static_cast<uint64_t>(edited.gained);
  }
  return gained;
}

// Applies `edit` to the run at `place`, for the first ids that are neighbours in that run.
PrefixIndex::Edited PrefixIndex::EditKnown(const Edit& edit, BlockPlace place,
                                           std::span<const BlockId> ids) {
  MutexLock lock(runs_.LockOf(place.run));
  const PrefixRun* run = runs_.Get(place.run);
  if (run == nullptr || !run->Has(place.offset, ids[0])) return {};
  uint64_t blocks = uint64_t{1} << place.offset;
  size_t taken = 1;
  for (uint32_t at = place.offset; taken < ids.size(); ++taken) {
    if (run->Has(at + 1, ids[taken])) {
      ++at;
    } else if (at > 0 && run->Has(at - 1, ids[taken])) {
      --at;
    } else {
      break;
    }
    blocks |= uint64_t{1} << at;
  }
  return {taken, EditRun(edit, place.run, *run, blocks)};
}

int64_t PrefixIndex::EditRun(const Edit& edit, uint32_t number, const PrefixRun& run,
                             uint64_t blocks) {
  const Outcome after = OutcomeOf(edit, run, blocks);
  if (!after.changed) return 0;
  held_[edit.worker] += static_cast<uint64_t>(after.gained);
  Replace(number, run, after.holdings);
  return after.gained;
}

// The run's holdings after `edit` of `blocks`. Copy-on-write: the run itself is not changed.
PrefixIndex::Outcome PrefixIndex::OutcomeOf(const Edit& edit, const PrefixRun& run,
                                            uint64_t blocks) {
  Outcome after;
  std::array<uint64_t, kBlockTiers> tiers{};
  uint32_t i = 0;
  for (; i < run.holdings() && run.holding(i).worker < edit.worker; ++i) {
    after.holdings.push_back(run.holding(i));
  }
  for (; i < run.holdings() && run.holding(i).worker == edit.worker; ++i) {
    tiers[static_cast<size_t>(run.holding(i).tier)] = run.holding(i).blocks;
  }
  const std::array<uint64_t, kBlockTiers> before = tiers;
  after.gained = Apply(edit, blocks, tiers);
  after.changed = tiers != before;
  for (size_t tier = 0; tier < kBlockTiers; ++tier) {
    if (tiers[tier] == 0) continue;
    after.holdings.push_back({.blocks = tiers[tier],
                              .worker = static_cast<uint16_t>(edit.worker),
                              .tier = static_cast<BlockTier>(tier)});
  }
  for (; i < run.holdings(); ++i) after.holdings.push_back(run.holding(i));
  return after;
}

// Changes the worker's blocks in each tier. Returns the change in the number of its blocks.
int64_t PrefixIndex::Apply(const Edit& edit, uint64_t blocks,
                           std::array<uint64_t, kBlockTiers>& tiers) {
  const auto held = [&] {
    uint64_t all = 0;
    for (const uint64_t tier : tiers) all |= tier;
    return all;
  };
  const uint64_t before = held();
  if (edit.change == Change::kExpect) blocks &= ~before;
  if (edit.change == Change::kMove) blocks &= before;
  if (edit.change == Change::kUnexpect) {
    blocks &= tiers[static_cast<size_t>(BlockTier::kExpected)];
  }
  for (uint64_t& tier : tiers) tier &= ~blocks;
  const bool adds = edit.change != Change::kRemove && edit.change != Change::kUnexpect;
  if (adds) tiers[static_cast<size_t>(edit.tier)] |= blocks;
  return std::popcount(held()) - std::popcount(before);
}

// Publishes a run with these holdings in place of `old`. Blocks at the run's end that no worker has
// are removed, and the run too when none is left. Ids are copied to smaller memory when less than
// half of it is used.
void PrefixIndex::Replace(uint32_t number, const PrefixRun& old,
                          std::span<const RunHolding> holdings) {
  const auto length = static_cast<uint32_t>(64 - std::countl_zero(HeldBits(holdings)));
  RunIds* ids = RunIds::Of(old.ids());
  if (length == 0) {
    runs_.Set(number, nullptr);
  } else if (length * 2 < ids->capacity) {
    RunIds* smaller = RunIds::New(length, {old.ids(), length});
    runs_.Set(number, PrefixRun::New(smaller->ids(), length, holdings));
  } else {
    runs_.Set(number, PrefixRun::New(old.ids(), length, holdings));
  }
  RemoveFromDirectory(number, length, {old.ids() + length, old.length() - length});
  if (length * 2 < ids->capacity) epochs_.Retire(ids);
  epochs_.Retire(const_cast<PrefixRun*>(&old));
  if (length == 0) runs_.Free(number);
}

// ---------------------------------------------------------------- new blocks

PrefixIndex::Edited PrefixIndex::AddNew(const Edit& edit, const BlockId* previous,
                                        std::span<const BlockId> ids) {
  if (blocks_ + ids.size() > blocks_max_) {
    dropped_ += ids.size();
    return {ids.size(), 0};
  }
  size_t added = 0;
  if (previous != nullptr) {
    const BlockPlace place = PlaceOf(*previous);
    if (place.run != 0) added = Append(edit, place, *previous, ids);
  }
  if (added == 0) added = AddRun(edit, ids);
  held_[edit.worker] += added;
  return {added, static_cast<int64_t>(added)};
}

// Appends ids to the run at `after`. Returns their number: 0 when `previous` is not the run's last
// block, or the run is full.
size_t PrefixIndex::Append(const Edit& edit, BlockPlace after, const BlockId& previous,
                           std::span<const BlockId> ids) {
  MutexLock lock(runs_.LockOf(after.run));
  const PrefixRun* old = runs_.Get(after.run);
  if (old == nullptr || !old->Has(after.offset, previous)) return 0;
  const uint32_t length = old->length();
  if (after.offset + 1 != length || length == BlockPlace::kRunMax) return 0;
  ids = ids.first(std::min<size_t>(ids.size(), BlockPlace::kRunMax - length));
  const auto longer = static_cast<uint32_t>(length + ids.size());
  RunIds* old_ids = RunIds::Of(old->ids());
  RunIds* store = old_ids;
  // Readers of the old run read its first `length` ids only, so the memory behind may be written.
  if (old_ids->used != length || old_ids->capacity < longer) {
    const uint32_t capacity = std::max(longer, std::min(length * 3 / 2, BlockPlace::kRunMax));
    store = RunIds::New(capacity, {old->ids(), length});
  }
  std::copy(ids.begin(), ids.end(), store->ids() + length);
  store->used = longer;
  const Outcome outcome = OutcomeOf(edit, *old, LowBits(longer) & ~LowBits(length));
  PrefixRun* run = PrefixRun::New(store->ids(), longer, outcome.holdings);
  runs_.Set(after.run, run);
  const size_t entered = AddToDirectory(after.run, length, ids);
  if (store != old_ids) epochs_.Retire(old_ids);
  epochs_.Retire(const_cast<PrefixRun*>(old));
  if (entered < ids.size()) Shorten(after.run, *run, length + static_cast<uint32_t>(entered));
  return entered;
}

size_t PrefixIndex::AddRun(const Edit& edit, std::span<const BlockId> ids) {
  ids = ids.first(std::min<size_t>(ids.size(), BlockPlace::kRunMax));
  const auto length = static_cast<uint32_t>(ids.size());
  const uint32_t number = runs_.Allocate();
  PENSTOCK_CHECK(number != 0, "more runs than blocks_max allows");
  MutexLock lock(runs_.LockOf(number));
  const RunHolding holding{
      .blocks = LowBits(length), .worker = static_cast<uint16_t>(edit.worker), .tier = edit.tier};
  PrefixRun* run = PrefixRun::New(RunIds::New(length, ids)->ids(), length, std::span(&holding, 1));
  runs_.Set(number, run);
  const size_t entered = AddToDirectory(number, 0, ids);
  if (entered < length) Shorten(number, *run, static_cast<uint32_t>(entered));
  return entered;
}

// Undoes the end of a run, from `length` on: another thread has entered those blocks in another run
// meanwhile, so the directory does not point here.
void PrefixIndex::Shorten(uint32_t number, const PrefixRun& run, uint32_t length) {
  Holdings holdings;
  for (uint32_t i = 0; i < run.holdings(); ++i) {
    RunHolding holding = run.holding(i);
    holding.blocks &= LowBits(length);
    if (holding.blocks != 0) holdings.push_back(holding);
  }
  runs_.Set(number, length == 0 ? nullptr : PrefixRun::New(run.ids(), length, holdings));
  if (length == 0) {
    epochs_.Retire(RunIds::Of(run.ids()));
    runs_.Free(number);
  }
  epochs_.Retire(const_cast<PrefixRun*>(&run));
}

// Enters ids in the directory as the run's blocks from `offset` on. Stops at the first id that is
// there already and returns the number entered. The run must be published before: a reader that
// finds an id follows it to the run.
size_t PrefixIndex::AddToDirectory(uint32_t run, uint32_t offset, std::span<const BlockId> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t hash = HashOf(ids[i]);
    Shard& shard = ShardOf(hash);
    MutexLock lock(shard.mutex);
    if (PlaceOf(ids[i]).run != 0) return i;
    shard.directory.Insert(TagOf(hash), {run, offset + static_cast<uint32_t>(i)});
    ++blocks_;
  }
  return ids.size();
}

void PrefixIndex::RemoveFromDirectory(uint32_t run, uint32_t offset, std::span<const BlockId> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t hash = HashOf(ids[i]);
    Shard& shard = ShardOf(hash);
    MutexLock lock(shard.mutex);
    shard.directory.Erase(TagOf(hash), {run, offset + static_cast<uint32_t>(i)});
    --blocks_;
  }
}

}  // namespace penstock
