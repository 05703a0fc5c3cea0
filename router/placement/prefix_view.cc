#include "router/placement/prefix_view.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kExpectationsMax = 1 << 16;
// The hit probability of expected blocks on a worker that has never sent an event.
constexpr double kUnwatchedHitProbability = 0.5;

std::optional<BlockTier> TierOf(v1::KvTier tier) {
  switch (tier) {
    case v1::DEVICE:
      return BlockTier::kDevice;
    case v1::DRAM:
      return BlockTier::kDram;
    case v1::NVME:
      return BlockTier::kNvme;
    default:
      return std::nullopt;
  }
}

// Validates an event. All events of a batch are validated before any is applied.
absl::Status CheckEvent(const v1::BlockEvent& event) {
  const auto whole = [](const std::string& ids) { return ids.size() % sizeof(BlockId) == 0; };
  switch (event.event_case()) {
    case v1::BlockEvent::kStored: {
      const v1::BlocksStored& stored = event.stored();
      const bool parent = stored.parent().empty() || stored.parent().size() == sizeof(BlockId);
      if (whole(stored.ids()) && parent && TierOf(stored.tier())) return absl::OkStatus();
      return InvalidArgument("stored blocks with broken ids or an unknown tier");
    }
    case v1::BlockEvent::kRemoved:
      if (whole(event.removed().ids())) return absl::OkStatus();
      return InvalidArgument("removed blocks with broken ids");
    case v1::BlockEvent::kMoved:
      if (whole(event.moved().ids()) && TierOf(event.moved().tier())) return absl::OkStatus();
      return InvalidArgument("moved blocks with broken ids or an unknown tier");
    case v1::BlockEvent::kCleared:
      return absl::OkStatus();
    default:
      return InvalidArgument("an event of an unknown kind");
  }
}

}  // namespace

absl::StatusOr<std::vector<BlockId>> BlockIdsOf(const std::string& bytes) {
  if (bytes.size() % sizeof(BlockId) != 0) {
    return InvalidArgument("{} bytes are no whole number of block ids", bytes.size());
  }
  std::vector<BlockId> ids(bytes.size() / sizeof(BlockId));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

PrefixView::PrefixView(const Clock& clock) : clock_(clock) {}

std::optional<uint32_t> PrefixView::Join() {
  MutexLock lock(mutex_);
  const auto free = std::find_if(workers_.begin(), workers_.end(),
                                 [](const Worker& worker) { return !worker.joined; });
  if (free == workers_.end()) {
    if (workers_.size() == kIndexWorkersMax) return std::nullopt;
    workers_.push_back({.joined = true});
    return static_cast<uint32_t>(workers_.size() - 1);
  }
  *free = {.joined = true};
  return static_cast<uint32_t>(free - workers_.begin());
}

void PrefixView::Leave(uint32_t worker) {
  index_.Clear(worker);
  MutexLock lock(mutex_);
  std::erase_if(expectations_,
                [worker](const Expectation& expected) { return expected.worker == worker; });
  workers_[worker] = {};
}

// ---------------------------------------------------------------- events

void PrefixView::OnStreamStarted(uint32_t worker) {
  MutexLock lock(mutex_);
  workers_[worker].streaming = true;
  workers_[worker].next_sequence = 0;
}

void PrefixView::OnStreamEnded(uint32_t worker) {
  MutexLock lock(mutex_);
  workers_[worker].streaming = false;
}

absl::Status PrefixView::OnEvents(uint32_t worker, const v1::BlockEvents& batch) {
  for (const v1::BlockEvent& event : batch.events()) RETURN_IF_ERROR(CheckEvent(event));
  {
    MutexLock lock(mutex_);
    Worker& state = workers_[worker];
    if (batch.sequence() != state.next_sequence) {
      ++figures_.gaps;
      return OutOfRange("batch {} of block events came where {} was due", batch.sequence(),
                        state.next_sequence);
    }
    ++state.next_sequence;
    state.heard = true;
    state.last_heard = clock_.Now();
    figures_.events += static_cast<uint64_t>(batch.events_size());
  }
  if (batch.sequence() == 0) {
    // The snapshot replaces all known blocks of the worker.
    MutexLock restart(restart_mutex_);
    {
      MutexLock lock(mutex_);
      workers_[worker].incarnation = batch.incarnation();
    }
    index_.Clear(worker);
  }
  for (const v1::BlockEvent& event : batch.events()) Apply(worker, event);
  return absl::OkStatus();
}

void PrefixView::OnRestarted(uint32_t worker, uint64_t incarnation) {
  MutexLock restart(restart_mutex_);
  {
    MutexLock lock(mutex_);
    if (std::exchange(workers_[worker].incarnation, incarnation) == incarnation) return;
    std::erase_if(expectations_,
                  [worker](const Expectation& expected) { return expected.worker == worker; });
  }
  index_.Clear(worker);
}

void PrefixView::Apply(uint32_t worker, const v1::BlockEvent& event) {
  if (event.has_cleared()) return index_.Clear(worker);
  if (event.has_stored()) {
    const v1::BlocksStored& stored = event.stored();
    const std::vector<BlockId> ids = *BlockIdsOf(stored.ids());
    const std::vector<BlockId> parent = *BlockIdsOf(stored.parent());
    return index_.Store(worker, *TierOf(stored.tier()), parent.empty() ? nullptr : parent.data(),
                        ids);
  }
  if (event.has_moved()) {
    return index_.Move(worker, *TierOf(event.moved().tier()), *BlockIdsOf(event.moved().ids()));
  }
  index_.Remove(worker, *BlockIdsOf(event.removed().ids()));
}

// ---------------------------------------------------------------- hit probability

double PrefixView::HitProbability(uint32_t worker) const {
  MutexLock lock(mutex_);
  const Worker& state = workers_[worker];
  if (!state.heard) return kUnwatchedHitProbability;
  const Duration silent = clock_.Now() - state.last_heard;
  if (silent <= kFreshFor) return 1;
  return std::exp2(-Milliseconds(silent - kFreshFor) / Milliseconds(kHalfLife));
}

CachedPrefix PrefixView::CachedOn(uint32_t worker, const PrefixMatches& matches,
                                  uint32_t prompt_tokens, uint32_t block_tokens) const {
  const PrefixMatches::Hit& hit = matches.of(worker);
  if (hit.blocks == 0 || prompt_tokens == 0) return {};
  const auto tokens_in = [&](BlockTier tier) {
    return hit.in_tier[static_cast<size_t>(tier)] * block_tokens;
  };
  // The last token is always computed: its logits are needed.
  return {.tokens = std::min(hit.blocks * block_tokens, prompt_tokens - 1),
          .dram_tokens = tokens_in(BlockTier::kDram),
          .nvme_tokens = tokens_in(BlockTier::kNvme),
          .expected_tokens = tokens_in(BlockTier::kExpected),
          .hit_probability = HitProbability(worker)};
}

void PrefixView::Expect(uint32_t worker, std::span<const BlockId> ids) {
  if (ids.empty() || index_.Expect(worker, nullptr, ids) == 0) return;
  std::optional<Expectation> oldest;
  {
    MutexLock lock(mutex_);
    expectations_.push_back({clock_.Now() + kExpectFor, worker, {ids.begin(), ids.end()}});
    if (expectations_.size() > kExpectationsMax) {
      oldest = std::move(expectations_.front());
      expectations_.pop_front();
    }
  }
  if (oldest) index_.Unexpect(oldest->worker, oldest->ids);
}

void PrefixView::OnMissing(uint32_t worker, std::span<const BlockId> ids, size_t count) {
  // While its stream is live, the worker reports evictions itself, and may have reported the blocks
  // as stored again since this finding.
  if (count >= ids.size() || HitProbability(worker) >= 1) return;
  index_.Remove(worker, ids.subspan(count));
  MutexLock lock(mutex_);
  figures_.missing += ids.size() - count;
}

void PrefixView::Sweep() {
  std::vector<Expectation> over;
  {
    MutexLock lock(mutex_);
    while (!expectations_.empty() && expectations_.front().until <= clock_.Now()) {
      over.push_back(std::move(expectations_.front()));
      expectations_.pop_front();
    }
  }
  for (const Expectation& expected : over) index_.Unexpect(expected.worker, expected.ids);
}

PrefixView::Figures PrefixView::figures() const {
  MutexLock lock(mutex_);
  Figures figures = figures_;
  figures.blocks = index_.blocks();
  figures.dropped = index_.dropped();
  for (const Worker& worker : workers_) {
    const bool stale = worker.joined && clock_.Now() - worker.last_heard > kFreshFor;
    figures.stale_workers += stale ? 1 : 0;
  }
  return figures;
}

}  // namespace penstock
