// A process that spills is killed with -9, again and again: what its store has said to be stored is
// served after a restart, with the right bytes, and nothing else is served with wrong ones.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <set>

#include "kvstore/tiers/tiered_store.h"
#include "tests/kvstore/tiers/store_fixture.h"

namespace penstock {
namespace {

constexpr uint32_t kBlocks = 6000;

TieredStore::Options Options(const std::string& directory, size_t stride) {
  TieredStore::Options options{.dram_bytes = 32 * stride};
  options.nvme.directory = directory;
  options.nvme.bytes = uint64_t{192} << 20;
  options.nvme.segment_bytes = uint64_t{8} << 20;
  options.nvme_uses_min = 1;
  options.save_time = Duration::zero();
  return options;
}

std::map<BlockId, uint32_t> Numbers() {
  std::map<BlockId, uint32_t> numbers;
  for (uint32_t n = 0; n < kBlocks; ++n) numbers[ChainName(n).id] = n;
  return numbers;
}

// Spills until it is killed, and reports what is on NVMe as the store says it: n + 1, or -(n + 1)
// when it is gone.
[[noreturn]] void SpillForEver(const std::string& directory, uint32_t first, int out) {
  const std::map<BlockId, uint32_t> numbers = Numbers();
  Pages pages(64);
  const auto on_event = [&](const BlockEvent& event) {
    const auto n = static_cast<int32_t>(numbers.at(event.name.id)) + 1;
    if (event.tier == Tier::kDram) return;
    const int32_t report = event.tier ? n : -n;
    if (write(out, &report, sizeof(report)) != sizeof(report)) _exit(1);
  };
  auto store = TieredStore::Open(Options(directory, pages.stride()), pages.view(), on_event);
  if (!store.ok()) _exit(2);
  (*store)->Start();
  for (uint32_t i = 0;; ++i) {
    const uint32_t n = (first + i) % kBlocks;
    (*store)->Spill({.name = ChainName(n), .page = pages.Filled(n)});
    if (i % 16 == 0) (*store)->WaitUntilQuiet();
  }
}

TEST(StoreKill, WhatWasSaidIsServedAndNothingTornIs) {
  TempFolder directory;
  std::mt19937 random(9);
  std::set<uint32_t> stored;
  const std::map<BlockId, uint32_t> numbers = Numbers();
  for (uint32_t round = 0; round < 6; ++round) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) SpillForEver(directory.path(), round * 500, ends[1]);
    close(ends[1]);
    // It is killed after so many reports of new blocks, which is in the middle of something.
    const auto min = static_cast<uint32_t>(stored.size() + 50 + random() % 600);
    uint32_t reports = 0;
    int32_t report = 0;
    bool killed = false;
    while (read(ends[0], &report, sizeof(report)) == sizeof(report)) {
      const auto n = static_cast<uint32_t>(std::abs(report)) - 1;
      if (report > 0) stored.insert(n);
      if (report < 0) stored.erase(n);
      if (++reports >= min && !std::exchange(killed, true)) kill(child, SIGKILL);
    }
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);

    Pages pages(64);
    auto store = TieredStore::Open(Options(directory.path(), pages.stride()), pages.view(), {});
    ASSERT_TRUE(store.ok()) << store.status();
    (*store)->Start();
    (*store)->WaitUntilQuiet();
    std::set<uint32_t> served;
    for (uint32_t n = 0; n < kBlocks; ++n) {
      if ((*store)->Find(ChainIds(n, 1)).blocks == 0) continue;
      RestoreAnswer answer;
      (*store)->Restore(ChainIds(n, 1), pages.Take(1), answer.Callback());
      const RestoreResult result = answer.Wait();
      EXPECT_EQ(result.whole, 1u) << "found, but not served: " << n;
      if (result.whole != 1) continue;
      EXPECT_TRUE(pages.Holds(result.pages[0], n)) << n;
      served.insert(n);
    }
    for (const uint32_t n : stored) EXPECT_TRUE(served.contains(n)) << "lost: " << n;
    EXPECT_GE(served.size(), min * 9 / 10) << "round " << round;
    EXPECT_EQ((*store)->stats().nvme.corrupt, 0u);
    stored = served;
  }
}

}  // namespace
}  // namespace penstock
