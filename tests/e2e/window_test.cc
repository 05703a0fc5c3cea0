// Models whose layers all have a sliding window: workers keep, send and restore the blocks of the
// window only, in pools that have no room for more, and every token is that of one process which
// keeps all.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/window_fixture.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr uint64_t kTokenBytes = 5 * 2 * 64 * 2 * 2;  // layers, KV heads, head, K and V, bf16

// A pool of `blocks` blocks, of 40 KiB each.
std::string Pool(int blocks) { return fmt::format("--kv_memory={}KiB", blocks * 40); }

using WindowTest = WindowCase;

// The window has 63 blocks. The pools have less than 1.1 times as many, and in the prefill worker
// the blocks of one chunk besides.
TEST_F(WindowTest, SixThousandTokensHoldOneWindow) {
  Make(1000);
  for (const std::vector<std::string>& tiers :
       {std::vector<std::string>{"--dram_memory=0B"}, {"--dram_memory=64MiB"}}) {
    Cluster cluster({.model = folder(),
                     .prefill_flags = {"--random_chunks", "--chunk_tokens=512", Pool(69 + 32),
                                       tiers.front(), "--wire_codec=raw"},
                     .decode_flags = {Pool(69), tiers.front()}});
    const TestRequest request = LongRequest(4000, 2000, 7);
    const TestAnswer answer = Check(cluster, request);
    EXPECT_EQ(answer.tokens[0].size(), 2000u);
    EXPECT_GT(answer.timing.kv_bytes_moved(), 0u);
    EXPECT_LE(answer.timing.kv_bytes_moved(), 63 * 16 * kTokenBytes);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  }
}

// Pools so small that sequences wait for each other, are swapped out, and share parts of prompts.
TEST_F(WindowTest, ManyAtOnceWithSmallPools) {
  Make(200);
  for (const char* dram : {"--dram_memory=0B", "--dram_memory=64MiB"}) {
    Cluster cluster({.model = folder(),
                     .prefill = 2,
                     .decode = 2,
                     .prefill_flags = {"--random_chunks", "--chunk_tokens=128", Pool(64), dram},
                     .decode_flags = {Pool(70), dram, "--max_batch=5", "--speculation=ngram",
                                      "--max_draft_tokens=6", "--random_drafts"}});
    CheckAtOnce(cluster, SharingRequests());
  }
}

// The same prompt, longer ones and turns of a conversation: all of it, a part of it or nothing is
// cached, on the device or below.
TEST_F(WindowTest, WhatIsCachedChangesNothing) {
  Make(300);
  struct Case {
    int prefill_blocks, decode_blocks;
    const char* dram;
  };
  for (const Case& pools : {Case{1000, 1000, "0B"}, {64, 40, "0B"}, {64, 40, "64MiB"}}) {
    const std::string dram = fmt::format("--dram_memory={}", pools.dram);
    for (const char* local : {"0", "400"}) {
      Cluster cluster({.model = folder(),
                       .prefill_flags = {"--random_chunks", "--chunk_tokens=256",
                                         Pool(pools.prefill_blocks), dram},
                       .decode_flags = {Pool(pools.decode_blocks), dram,
                                        fmt::format("--local_prefill_max_tokens={}", local)}});
      const uint32_t cached = Converse(cluster);
      if (pools.decode_blocks == 1000) {
        EXPECT_GT(cached, 1000u);
      }
      EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
    }
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class WindowFailoverTest : public WindowTest, public testing::WithParamInterface<int> {};

TEST_P(WindowFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Make(256);
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = {"--random_chunks", "--wire_codec=raw"},
                   .decode_flags = {Pool(100), "--wire_codec=raw"}});
  const TestAnswer answer = CheckDisturbed(cluster, LongRequest(900, 700, 61), GetParam(), 350);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, WindowFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
