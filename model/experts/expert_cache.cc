#include "model/experts/expert_cache.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

// Reads in flight: NVMe disks reach their bandwidth with a few of a megabyte each.
constexpr int kReaders = 4;

// A topic lasts for hundreds of tokens. Tokens count in every layer.
constexpr double kHalfLifeTokens = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertCache>> ExpertCache::Create(Options options) {
  std::unique_ptr<ExpertCache> cache(new ExpertCache(std::move(options)));
  ASSIGN_OR_RETURN(cache->file_, ExpertFile::Create(cache->options_.directory));
  return cache;
}

ExpertCache::~ExpertCache() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    queued_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status ExpertCache::Add(GatedWeights& expert) {
  PENSTOCK_CHECK(threads_.empty());
  const size_t bytes = expert.memory_bytes();
  if (bytes > options_.bytes) {
    return InvalidArgument(
        "expert_memory is {}, and one expert of this model takes {}; give at least that, or leave "
        "expert_memory out to keep all experts in memory",
        FormatBytes(options_.bytes), FormatBytes(bytes));
  }
  std::vector<std::span<const std::byte>> pieces = expert.gate_up.memory();
  for (const auto piece : expert.down.memory()) pieces.push_back(piece);
  RETURN_IF_ERROR(file_->Append(pieces));
  slot_bytes_ = std::max(slot_bytes_, bytes);
  expert.cached_as = file_->experts() - 1;
  expert = expert.Over(nullptr);
  return absl::OkStatus();
}

void ExpertCache::Start() {
  const size_t slots =
      std::min(options_.bytes / slot_bytes_, static_cast<size_t>(file_->experts()));
  memory_ = Buffer(slots * slot_bytes_);
  {
    MutexLock lock(mutex_);
    slots_.resize(slots);
    decisions_.emplace(file_->experts(), static_cast<int32_t>(slots), kHalfLifeTokens);
    stats_.bytes_total = memory_.bytes();
    stats_.file_bytes = file_->size();
  }
  for (int i = 0; i < kReaders; ++i) {
    threads_.emplace_back([this] {
      NameThisThread("expert-reads");
      ReadUntilClosed();
    });
  }
}

std::byte* ExpertCache::MemoryOf(int32_t slot) const {
  return memory_.as<std::byte>() + static_cast<size_t>(slot) * slot_bytes_;
}

void ExpertCache::Begin(std::span<const ExpertUse> uses, int64_t tokens) {
  MutexLock lock(mutex_);
  decisions_->Begin(uses, tokens);
  failed_.clear();
  ahead_.clear();
  for (const ExpertUse& use : uses) ahead_.push_back(use.expert);
  ReadAhead();
}

// In the order of use, so that the first expert is there first.
void ExpertCache::ReadAhead() {
  for (; !ahead_.empty(); ahead_.pop_front()) {
    if (decisions_->SlotOf(ahead_.front())) continue;
    const std::optional<int32_t> slot = decisions_->TakeAhead(ahead_.front());
    if (!slot) return;
    Read(ahead_.front(), *slot);
  }
}

void ExpertCache::Read(int32_t expert, int32_t slot) {
  Slot& target = slots_[static_cast<size_t>(slot)];
  if (target.number >= 0) stats_.bytes_resident -= file_->bytes(target.number);
  target = {.number = expert, .reading = true, .fresh = true};
  queue_.push_back(slot);
  queued_.NotifyOne();
}

absl::StatusOr<const GatedWeights*> ExpertCache::Get(const GatedWeights& expert) {
  const int32_t number = expert.cached_as;
  MutexLock lock(mutex_);
  if (!ahead_.empty() && ahead_.front() == number) ahead_.pop_front();
  while (true) {
    if (const auto failed = failed_.find(number); failed != failed_.end()) return failed->second;
    std::optional<int32_t> slot = decisions_->SlotOf(number);
    if (slot && !slots_[static_cast<size_t>(*slot)].reading) {
      Slot& found = slots_[static_cast<size_t>(*slot)];
      if (found.fresh) found.expert = expert.Over(MemoryOf(*slot));
      ++(found.fresh ? stats_.misses : stats_.hits);
      found.fresh = false;
      return &found.expert;
    }
    // All slots may be those of reads for a layer that failed.
    if (!slot && (slot = decisions_->TakeNow(number))) Read(number, *slot);
    const TimePoint begin = SteadyClock().Now();
    ended_.Wait(mutex_);
    stats_.wait_s += ElapsedSeconds(begin);
  }
}

void ExpertCache::Release(int32_t expert) {
  MutexLock lock(mutex_);
  decisions_->Release(expert);
  ReadAhead();
}

void ExpertCache::ReadUntilClosed() {
  while (true) {
    int32_t slot = 0, expert = 0;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !closed_) queued_.Wait(mutex_);
      if (closed_) return;
      slot = queue_.front();
      queue_.pop_front();
      expert = slots_[static_cast<size_t>(slot)].number;
    }
    const absl::Status status = file_->Read(expert, MemoryOf(slot));
    MutexLock lock(mutex_);
    EndRead(slot, status);
  }
}

void ExpertCache::EndRead(int32_t slot, const absl::Status& status) {
  Slot& target = slots_[static_cast<size_t>(slot)];
  target.reading = false;
  if (status.ok()) {
    stats_.bytes_read += file_->bytes(target.number);
    stats_.bytes_resident += file_->bytes(target.number);
    decisions_->Unlock(slot);
  } else {
    ++stats_.read_errors;
    failed_[target.number] = status;
    target = {};
    decisions_->Clear(slot);
  }
  ended_.NotifyAll();
}

ExpertCacheStats ExpertCache::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace penstock
