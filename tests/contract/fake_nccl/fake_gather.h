#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// The ranks of a communicator that are in this process, and their all-gathers. Any thread; a rank's
// own operations come one after the other, in the order of its stream.
class FakeGatherGroup {
 public:
  struct Gather {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;  // [ranks][size]
    uint64_t size = 0;
  };

  // The one of that name, for as long as somebody has it.
  static std::shared_ptr<FakeGatherGroup> Of(const std::string& name, int ranks);

  void Join() { ++joined_; }
  bool complete() const { return joined_ == ranks_; }

  // The next call of `rank`, which is captured for a graph on all ranks or on none.
  void Call(int rank, bool captured, const std::function<void(const std::string&)>& violate);

  // The next of `rank`'s operations, as a GPU does it: over when every rank has come to it and has
  // all that it is to get, or when `quit`. What NCCL forbids goes to `violate`.
  void Run(int rank, const Gather& gather, const std::atomic<bool>& quit,
           const std::function<void(const std::string&)>& violate);

 private:
  explicit FakeGatherGroup(int ranks)
      : ranks_(ranks), calls_(static_cast<size_t>(ranks)), turns_(static_cast<size_t>(ranks)) {}

  struct Round {
    std::map<int, Gather> gathers;  // of the ranks that have come
    int left = 0;                   // ranks that have all
  };
  bool Await(std::unique_lock<std::mutex>& lock, const std::atomic<bool>& quit,
             const std::function<bool()>& met);

  const int ranks_;
  std::atomic<int> joined_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Calls {
    bool captured = false;
    int ranks = 0;  // that have made it
  };
  std::vector<int64_t> calls_;       // of each rank
  std::map<int64_t, Calls> called_;  // that some ranks have made
  std::vector<int64_t> turns_;       // of each rank
  std::map<int64_t, Round> rounds_;
};
