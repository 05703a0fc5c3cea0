#include "tests/contract/fake_nccl/fake_gather.h"

#include <chrono>
#include <cstring>

std::shared_ptr<FakeGatherGroup> FakeGatherGroup::Of(const std::string& name, int ranks) {
  struct Groups {
    std::mutex mutex;
    std::map<std::string, std::weak_ptr<FakeGatherGroup>> by_name;
  };
  static auto* groups = new Groups();  // Outlives every thread.
  std::lock_guard lock(groups->mutex);
  auto group = groups->by_name[name].lock();
  if (group == nullptr) {
    group.reset(new FakeGatherGroup(ranks));
    groups->by_name[name] = group;
  }
  return group;
}

bool FakeGatherGroup::Await(std::unique_lock<std::mutex>& lock, const std::atomic<bool>& quit,
                            const std::function<bool()>& met) {
  while (!met() && !quit) changed_.wait_for(lock, std::chrono::milliseconds(2));
  return met();
}

void FakeGatherGroup::Call(int rank, bool captured,
                           const std::function<void(const std::string&)>& violate) {
  std::lock_guard lock(mutex_);
  const int64_t number = calls_[static_cast<size_t>(rank)]++;
  Calls& all = called_.try_emplace(number, Calls{.captured = captured}).first->second;
  if (all.captured != captured) violate("a call that some ranks capture and others do not");
  if (++all.ranks == ranks_) called_.erase(number);
}

void FakeGatherGroup::Run(int rank, const Gather& gather, const std::atomic<bool>& quit,
                          const std::function<void(const std::string&)>& violate) {
  std::unique_lock lock(mutex_);
  const int64_t turn = turns_[static_cast<size_t>(rank)]++;
  Round& round = rounds_[turn];
  round.gathers[rank] = gather;
  changed_.notify_all();
  const auto ranks = static_cast<size_t>(ranks_);
  if (!Await(lock, quit, [&] { return round.gathers.size() == ranks; })) return;
  for (const auto& [from, other] : round.gathers) {
    if (other.size != gather.size) return violate("an all-gather of different sizes");
    std::byte* to = gather.to + static_cast<uint64_t>(from) * gather.size;
    // In place where it is there already.
    if (to != other.from) std::memcpy(to, other.from, gather.size);
  }
  ++round.left;
  changed_.notify_all();
  // Nobody's memory is used for other things before everybody has read it.
  if (!Await(lock, quit, [&] { return round.left >= ranks_; })) return;
  if (++round.left == 2 * ranks_) rounds_.erase(turn);
}
