// Models whose layers all have a sliding window: workers keep, send and restore the blocks of the
// window only, in pools that have no room for more, and every token is that of one process which
// keeps all.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/window_case.h"

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
    Cluster cluster({.model = folder_.path(),
                     .prefill_flags = {"--random_chunks", "--chunk_tokens=512", Pool(69 + 32),
                                       tiers.front(), "--wire_codec=raw"},
                     .decode_flags = {Pool(69), tiers.front()}});
    const TestRequest request = Prompt(4000, 2000, 7);
    const TestAnswer answer = Check(cluster, request);
    EXPECT_EQ(answer.tokens[0].size(), 2000u);
    EXPECT_GT(answer.timing.kv_bytes_moved(), 0u);
    EXPECT_LE(answer.timing.kv_bytes_moved(), 63 * 16 * kTokenBytes);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
  }
}

// Pools so small that sequences wait for each other, are swapped out, and share parts of prompts.
TEST_F(WindowTest, ManyAtOnceWithSmallPools) {
  Make(200);
  for (const char* dram : {"--dram_memory=0B", "--dram_memory=64MiB"}) {
    Cluster cluster({.model = folder_.path(),
                     .prefill = 2,
                     .decode = 2,
                     .prefill_flags = {"--random_chunks", "--chunk_tokens=128", Pool(64), dram},
                     .decode_flags = {Pool(70), dram, "--max_batch=5", "--speculation=ngram",
                                      "--max_draft_tokens=6", "--random_drafts"}});
    std::vector<TestRequest> requests = MakeRequests(36, 1500, local_->vocab(), 21);
    for (size_t r = 0; r < requests.size(); ++r) {
      TestRequest& request = requests[r];
      request.tokens_max = 30 + static_cast<int>(r * 37 % 400);
      request.choices = r % 6 == 5 ? 3 : 1;
      request.sampling.stop_token_ids.clear();
      if (r % 2 == 1) {  // It begins as the one before.
        const auto& before = requests[r - 1].prompt;
        const auto common = static_cast<std::ptrdiff_t>(before.size() * (r % 5) / 4);
        request.prompt.insert(
            request.prompt.begin(), before.begin(),
            before.begin() + std::min<std::ptrdiff_t>(common, std::ssize(before)));
      }
      for (size_t i = 50; r % 3 == 0 && i < request.prompt.size(); ++i) {
        request.prompt[i] = request.prompt[i - 50];
      }
    }
    CheckAtOnce(cluster, requests, 12);
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
      Cluster cluster({.model = folder_.path(),
                       .prefill_flags = {"--random_chunks", "--chunk_tokens=256",
                                         Pool(pools.prefill_blocks), dram},
                       .decode_flags = {Pool(pools.decode_blocks), dram,
                                        fmt::format("--local_prefill_max_tokens={}", local)}});
      TestRequest request = Prompt(1100, 60, 31);
      uint32_t cached = 0;
      for (int turn = 0; turn < 8; ++turn) {
        const TestAnswer answer = Check(cluster, request);
        cached = std::max(cached, answer.usage.cached_tokens());
        if (turn % 2 == 0) continue;  // Next, the same again.
        request.prompt.insert(request.prompt.end(), answer.tokens[0].begin(),
                              answer.tokens[0].end());
        const TestRequest more = Prompt(40 + turn * 70, 60, 32 + static_cast<uint32_t>(turn));
        request.prompt.insert(request.prompt.end(), more.prompt.begin(), more.prompt.end());
      }
      const TestRequest other = Prompt(900, 40, 50);
      Check(cluster, other);
      Check(cluster, request);
      if (pools.decode_blocks == 1000) {
        EXPECT_GT(cached, 1000u);
      }
      EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
    }
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class WindowFailoverTest : public WindowTest, public testing::WithParamInterface<int> {};

TEST_P(WindowFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Make(256);
  Cluster cluster({.model = folder_.path(),
                   .decode = 2,
                   .prefill_flags = {"--random_chunks", "--wire_codec=raw"},
                   .decode_flags = {Pool(100), "--wire_codec=raw"}});
  TestRequest request = Prompt(900, 700, 61);
  request.choices = 2;
  WorkerProcess* victim = nullptr;
  const TestAnswer answer = AskOne(cluster, request, [&](const TestAnswer& so_far) {
    if (victim != nullptr || so_far.tokens[0].size() < 350) return;
    for (WorkerProcess& worker : cluster.decode()) {
      const auto state = worker.State();
      if (state.has_value() && state->running() > 0) victim = &worker;
    }
    if (victim != nullptr) victim->process.Signal(GetParam());
  });
  ASSERT_NE(victim, nullptr);
  Expect(cluster, request, answer);
  EXPECT_GT(answer.timing.migrations(), 0u) << "the signal came too late";
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, WindowFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
