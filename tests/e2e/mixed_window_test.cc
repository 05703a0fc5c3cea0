// A model in which four of five layers have a sliding window: workers keep all blocks, and memory
// for those four layers only for the blocks in some sequence's window. Every token is that of one
// process which keeps all.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/window_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr uint64_t kLayerBytes = 16 * 2 * 64 * 2 * 2;  // a block's: KV heads, head, K and V, bf16

std::string Memory(int kib) { return fmt::format("--kv_memory={}KiB", kib); }

class MixedWindowTest : public WindowCase {
 protected:
  void Make(int32_t window) { WindowCase::Make(window, WindowedLayersOf::kAllButThird); }

  // The most rows that sequences of the decode workers have held since the last call.
  void LookAtRows(Cluster& cluster) {
    for (WorkerProcess& worker : cluster.decode()) {
      const auto state = worker.State();
      if (!state.has_value()) continue;
      EXPECT_GT(state->kv_rows_total(), 0u);
      EXPECT_LT(state->kv_rows_total(), state->kv_blocks_total());
      rows_held_ = std::max(rows_held_, state->kv_rows_used());
    }
  }

  uint64_t rows_held_ = 0;
};

// 6,000 tokens are 375 blocks, which with all their layers take 15 MiB. The window has 63 blocks.
TEST_F(MixedWindowTest, SixThousandTokensHoldTheRowsOfOneWindow) {
  Make(1000);
  for (const char* tier : {"--dram_memory=0B", "--dram_memory=64MiB"}) {
    Cluster cluster({.model = folder(),
                     .prefill_flags = {"--random_chunks", "--chunk_tokens=512", Memory(9 << 10),
                                       tier, "--wire_codec=raw"},
                     .decode_flags = {Memory(9 << 10), tier}});
    const TestRequest request = LongRequest(4000, 2000, 7);
    size_t looked = 0;
    const TestAnswer answer = AskOne(cluster, request, [&](const TestAnswer& so_far) {
      if (so_far.tokens[0].size() < looked + 200) return;
      looked = so_far.tokens[0].size();
      LookAtRows(cluster);
    });
    Expect(cluster, request, answer);
    EXPECT_EQ(answer.tokens[0].size(), 2000u);
    EXPECT_GE(rows_held_, 62u);
    EXPECT_LE(rows_held_, 66u);
    EXPECT_GT(answer.timing.kv_bytes_moved(), 249 * kLayerBytes);
    EXPECT_LE(answer.timing.kv_bytes_moved(), (250 + 4 * 63) * kLayerBytes);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  }
}

// Sequences wait for blocks and for rows, are swapped out, and share parts of prompts, which
// workers read from each other.
TEST_F(MixedWindowTest, ManyAtOnceWithSmallPools) {
  Make(200);
  for (const char* dram : {"--dram_memory=0B", "--dram_memory=64MiB"}) {
    Cluster cluster(
        {.model = folder(),
         .prefill = 2,
         .decode = 2,
         .prefill_flags = {"--random_chunks", "--chunk_tokens=128", Memory(5 << 10), dram},
         .decode_flags = {Memory(6 << 10), dram, "--max_batch=5", "--speculation=ngram",
                          "--max_draft_tokens=6", "--random_drafts"}});
    CheckAtOnce(cluster, SharingRequests());
    LookAtRows(cluster);
  }
}

// The same prompt, longer ones and turns of a conversation: all of it, a part of it or nothing is
// cached with its rows, on the device or below.
TEST_F(MixedWindowTest, WhatIsCachedChangesNothing) {
  Make(300);
  struct Case {
    int kib;
    const char* dram;
  };
  for (const Case& pools : {Case{40 << 10, "0B"}, {6 << 10, "0B"}, {6 << 10, "64MiB"}}) {
    const std::string dram = fmt::format("--dram_memory={}", pools.dram);
    for (const char* local : {"0", "400"}) {
      Cluster cluster(
          {.model = folder(),
           .prefill_flags = {"--random_chunks", "--chunk_tokens=256", Memory(pools.kib), dram},
           .decode_flags = {Memory(pools.kib), dram,
                            fmt::format("--local_prefill_max_tokens={}", local)}});
      const uint32_t cached = Converse(cluster);
      EXPECT_GT(cached, 1000u);
      EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
    }
  }
}

// Blocks on NVMe say whether their KV is that of all layers, to a later process, too.
TEST_F(MixedWindowTest, ARestartedWorkerReadsItsBlocksAgain) {
  Make(128);
  const TempFolder nvme;
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 8; ++i) requests.push_back(LongRequest(1000, 20, 70 + i));
  for (int life = 0; life < 2; ++life) {
    Cluster cluster({.model = folder(),
                     .prefill_flags = {"--chunk_tokens=256", Memory(5 << 10), "--dram_memory=4MiB",
                                       "--nvme_dir=" + nvme.path() + "/kv", "--nvme_size=64MiB",
                                       "--nvme_min_uses=1"},
                     .decode_flags = {"--local_prefill_max_tokens=0"}});
    EXPECT_TRUE(WaitUntil([&] { return HasFoundNvme(cluster.prefill()[0]); }, seconds(30)));
    uint32_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      for (const TestRequest& request : requests) {
        cached += Check(cluster, request).usage.cached_tokens();
      }
    }
    EXPECT_GT(cached, (life == 0 ? 3u : 8u) * 960u);
  }
}

// Another worker's blocks come with the rows of the last of them.
TEST_F(MixedWindowTest, APrefixIsReadFromAnotherWorker) {
  Make(200);
  Cluster cluster({.model = folder(), .prefill = 2, .prefill_flags = {"--chunk_tokens=128"}});
  CheckPeerRead(cluster, LongRequest(800, 30, 93));
}

// Beams fork at every step.
TEST_F(MixedWindowTest, BeamsShareRows) {
  Make(128);
  Cluster cluster({.model = folder(),
                   .prefill_flags = {"--random_chunks", Memory(5 << 10)},
                   .decode_flags = {Memory(6 << 10)}});
  TestRequest request = LongRequest(500, 120, 91);
  request.beams = 4;
  request.choices = 2;
  Check(cluster, request);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class MixedWindowFailoverTest : public MixedWindowTest, public testing::WithParamInterface<int> {};

TEST_P(MixedWindowFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Make(256);
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = {"--random_chunks", "--wire_codec=raw"},
                   .decode_flags = {Memory(5 << 10), "--wire_codec=raw"}});
  const TestAnswer answer = CheckDisturbed(cluster, LongRequest(900, 700, 61), GetParam(), 350);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, MixedWindowFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
