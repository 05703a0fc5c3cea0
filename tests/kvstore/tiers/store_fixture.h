#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/tiers/tiered_store.h"
#include "lab/fake/temp_folder.h"
#include "tests/kvstore/tiers/far_pages.h"

namespace penstock {

// Block number n of a chain; its content is a function of n.
inline BlockName ChainName(uint32_t n) {
  const auto id = [](uint32_t number) {
    BlockId made = ChildBlockId(BlockId{}, std::vector<uint32_t>{number});
    return made;
  };
  return {.id = id(n + 1), .parent = id(n)};
}
inline std::vector<BlockId> ChainIds(uint32_t first, uint32_t count) {
  std::vector<BlockId> ids;
  for (uint32_t i = 0; i < count; ++i) ids.push_back(ChainName(first + i).id);
  return ids;
}

#ifdef PENSTOCK_TEST_FAR_PAGES
inline constexpr bool kFarPages = true;
#else
inline constexpr bool kFarPages = false;
#endif

// A pool of small pages with an engine's side of a store: fills pages, waits for answers.
class Pages {
 public:
  explicit Pages(int64_t blocks, KvLayout layout = {.layers = 2, .kv_heads = 2, .head_dim = 16})
      : far_(kFarPages ? std::make_unique<FarPages>(layout, blocks) : nullptr),
        pool_(far_ != nullptr ? *BlockPool::CreateOver(far_->view())
                              : *BlockPool::Create(layout, blocks)) {}

  PagedKv view() const { return pool_->view(); }
  size_t stride() const { return view().layout.BlockStride(); }
  int64_t used() const { return pool_->blocks_used(); }

  std::vector<BlockRef> Take(size_t count) {
    auto credit = pool_->Reserve(static_cast<int64_t>(count));
    EXPECT_TRUE(credit.ok()) << credit.status();
    return credit->Take(static_cast<int64_t>(count));
  }
  // A page with the content of block `n` of the chain.
  BlockRef Filled(uint32_t n) {
    std::vector<BlockRef> page = Take(1);
    Fill(page[0], n);
    return std::move(page[0]);
  }
  void Fill(const BlockRef& page, uint32_t n) {
    const std::vector<std::byte> content = Content(n);
    const uint32_t id = page.id();
    WritePages(view(), {&id, 1}, 0, content.size(), content.data());
  }
  bool Holds(const BlockRef& page, uint32_t n) const {
    const uint32_t id = page.id();
    std::vector<std::byte> found(stride());
    ReadPages(view(), {&id, 1}, 0, found.size(), found.data());
    return found == Content(n);
  }
  std::vector<std::byte> Content(uint32_t n) const {
    std::vector<std::byte> bytes(stride());
    uint64_t state = n * 0x9e3779b97f4a7c15u + 1;
    for (std::byte& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<std::byte>(state >> 56);
    }
    return bytes;
  }

 private:
  std::unique_ptr<FarPages> far_;
  std::unique_ptr<BlockPool> pool_;
};

// A store's answer to one Restore or SwapIn. Shared with the callback, so that a test that gave up
// waiting leaves nothing dangling.
class RestoreAnswer {
 public:
  OnRestored Callback() {
    return [state = state_](RestoreResult result) {
      std::lock_guard lock(state->mutex);
      state->result = std::move(result);
      state->changed.notify_all();
    };
  }
  RestoreResult Wait() {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, std::chrono::seconds(30),
                                  [&] { return state_->result.has_value(); })) {
      ADD_FAILURE() << "no answer within 30 s";
      return {};
    }
    return std::move(*std::exchange(state_->result, std::nullopt));
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<RestoreResult> result;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Keeps what events say, as a subscriber would. (They are states: one may be said twice.)
class EventLog {
 public:
  // A callback for a new store: the events of an earlier store no longer hold.
  OnBlockEvent Callback() {
    {
      std::lock_guard lock(mutex_);
      tiers_.clear();
    }
    return [this](const BlockEvent& event) {
      std::lock_guard lock(mutex_);
      if (event.tier) {
        tiers_[event.name.id] = *event.tier;
      } else {
        tiers_.erase(event.name.id);
      }
      ++count_;
    };
  }
  std::map<BlockId, Tier> tiers() const {
    std::lock_guard lock(mutex_);
    return tiers_;
  }
  size_t count() const {
    std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<BlockId, Tier> tiers_;
  size_t count_ = 0;
};

// The segment files of a store's directory, sorted.
inline std::vector<std::string> SegmentsIn(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".seg") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::map<BlockId, Tier> AsMap(const std::vector<BlockEvent>& events) {
  std::map<BlockId, Tier> tiers;
  for (const BlockEvent& event : events) tiers[event.name.id] = *event.tier;
  return tiers;
}

}  // namespace penstock
