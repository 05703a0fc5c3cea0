// Pages in three bits, whose queries read the tokens of their own span in bf16: workers have memory
// for these only as long as a query may come. Every token is that of one process which computes all
// of it in other chunks, and keeps all.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/window_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr uint64_t kFirstCopy = 5 * 2 * 16 * (2 * 24 + 2 * 2);  // bytes of a block, all layers
constexpr uint64_t kSecondCopy = 5 * 2 * 16 * 2 * 64 * 2;

std::string Memory(int kib) { return fmt::format("--kv_memory={}KiB", kib); }

class SpanTest : public WindowCase {
 protected:
  void SetUp() override {
    WriteWindowModel(folder(), 0, WindowedLayersOf::kNone);
    Load("checkpoint", format());
  }
  virtual std::string format() const { return "k3v3+128"; }

  std::vector<std::string> With(std::vector<std::string> flags) const {
    flags.push_back("--kv_format=" + format());
    return flags;
  }

  // Sequences wait for blocks and for rows, are swapped out, and share parts of prompts, which
  // workers read from each other.
  void CheckManyWithSmallPools(const std::string& dram) {
    Cluster cluster(
        {.model = folder(),
         .prefill = 2,
         .decode = 2,
         .prefill_flags = With({"--random_chunks", "--chunk_tokens=128", Memory(5 << 10), dram}),
         .decode_flags = With({Memory(5 << 10), dram, "--max_batch=5", "--speculation=ngram",
                               "--max_draft_tokens=6", "--random_drafts"})});
    // Whether sequences meet that need more than the pool depends on the machine's speed, so they
    // get three rounds.
    const bool swaps = dram != "--dram_memory=0B";
    for (int round = 0; round < (swaps ? 3 : 1) && CountSwaps(cluster) == 0; ++round) {
      CheckAtOnce(cluster, SharingRequests());
    }
    EXPECT_EQ(CountSwaps(cluster) > 0, swaps);
  }

 private:
  static uint64_t CountSwaps(Cluster& cluster) {
    return StatsOf(cluster.decode()[0]).swaps_out() + StatsOf(cluster.decode()[1]).swaps_out();
  }
};

// 4,600 tokens are 288 blocks. A span has 8 of them.
TEST_F(SpanTest, ALongSequenceHoldsTheRowsOfOneSpan) {
  for (const char* tier : {"--dram_memory=0B", "--dram_memory=64MiB"}) {
    Cluster cluster({.model = folder(),
                     .prefill_flags = With({"--random_chunks", "--chunk_tokens=512",
                                            Memory(9 << 10), tier, "--wire_codec=raw"}),
                     .decode_flags = With({Memory(9 << 10), tier})});
    const TestRequest request = LongRequest(4000, 600, 7);
    uint64_t held = 0;
    const TestAnswer answer = AskOne(cluster, request, [&](const TestAnswer&) {
      const auto state = cluster.decode()[0].State();
      if (state.has_value()) held = std::max(held, state->kv_rows_used());
    });
    Expect(cluster, request, answer);
    EXPECT_EQ(answer.tokens[0].size(), 600u);
    EXPECT_GE(held, 7u);
    EXPECT_LE(held, 9u);
    EXPECT_GT(answer.timing.kv_bytes_moved(), 249 * kFirstCopy);
    EXPECT_LE(answer.timing.kv_bytes_moved(), 250 * kFirstCopy + 8 * kSecondCopy);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  }
}

TEST_F(SpanTest, ManyAtOnceWithSmallPools) {
  CheckManyWithSmallPools("--dram_memory=0B");
  CheckManyWithSmallPools("--dram_memory=64MiB");
}

// The same prompt, longer ones and turns of a conversation: all of it, a part of it or nothing is
// cached with its rows, on the device or below, where blocks have none.
TEST_F(SpanTest, WhatIsCachedChangesNothing) {
  struct Case {
    int kib;
    const char* dram;
    const char* local;
  };
  for (const Case& pools : {Case{40 << 10, "0B", "400"},
                            {6 << 10, "0B", "0"},
                            {6 << 10, "64MiB", "0"},
                            {6 << 10, "64MiB", "400"}}) {
    const std::string dram = fmt::format("--dram_memory={}", pools.dram);
    Cluster cluster(
        {.model = folder(),
         .prefill_flags = With({"--random_chunks", "--chunk_tokens=256", Memory(pools.kib), dram}),
         .decode_flags = With({Memory(pools.kib), dram,
                               fmt::format("--local_prefill_max_tokens={}", pools.local)})});
    EXPECT_GT(Converse(cluster), 1000u);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  }
}

// Lower tiers have first copies alone, so a hit ends where a span begins: 896 tokens of 1,000.
TEST_F(SpanTest, ARestartedWorkerReadsItsBlocksAgain) {
  const TempFolder nvme;
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 8; ++i) requests.push_back(LongRequest(1000, 20, 70 + i));
  for (int life = 0; life < 2; ++life) {
    Cluster cluster(
        {.model = folder(),
         .prefill_flags =
             With({"--chunk_tokens=256", Memory(4 << 10), "--dram_memory=4MiB",
                   "--nvme_dir=" + nvme.path() + "/kv", "--nvme_size=64MiB", "--nvme_min_uses=1"}),
         .decode_flags = With({"--local_prefill_max_tokens=0"})});
    EXPECT_TRUE(WaitUntil([&] { return HasFoundNvme(cluster.prefill()[0]); }, seconds(30)));
    uint32_t cached = 0;
    for (int round = 0; round < 2; ++round) {
      for (const TestRequest& request : requests) {
        cached += Check(cluster, request).usage.cached_tokens();
      }
    }
    EXPECT_GE(cached, (life == 0 ? 3u : 8u) * 896u);
  }
}

// Another worker's blocks come with the rows of the last span.
TEST_F(SpanTest, APrefixIsReadFromAnotherWorker) {
  Cluster cluster({.model = folder(),
                   .prefill = 2,
                   .prefill_flags = With({"--chunk_tokens=128"}),
                   .decode_flags = With({})});
  CheckPeerRead(cluster, LongRequest(800, 30, 93));
}

// Beams fork at every step.
TEST_F(SpanTest, BeamsShareRows) {
  Cluster cluster({.model = folder(),
                   .prefill_flags = With({"--random_chunks", Memory(5 << 10)}),
                   .decode_flags = With({Memory(6 << 10)})});
  TestRequest request = LongRequest(450, 100, 91);  // across 512
  request.beams = 4;
  request.choices = 2;
  Check(cluster, request);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Slots behind an eviction or a selection do not tell their positions, and so not their spans.
TEST_F(SpanTest, PoliciesAreRefused) {
  for (const char* flag :
       {"--kv_eviction=all", "--kv_selection=quest", "--kv_blend_deviation=0.5"}) {
    Process worker({"penstock-prefill", "--model=" + folder(), "--listen=127.0.0.1:0",
                    "--kv_format=" + format(), flag},
                   folder() + "/log");
    EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0) << flag;
    EXPECT_NE(worker.Log().find("a kv_format without a span"), std::string::npos)
        << flag << ": " << worker.Log();
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class SpanFailoverTest : public SpanTest, public testing::WithParamInterface<int> {};

TEST_P(SpanFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks", "--wire_codec=raw"}),
                   .decode_flags = With({Memory(5 << 10), "--wire_codec=raw"})});
  const TestAnswer answer = CheckDisturbed(cluster, LongRequest(900, 700, 61), GetParam(), 350);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, SpanFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

// Keys without their means, which are beside the model.
class CentredKeysTest : public SpanTest {
 protected:
  std::string format() const override { return "k3v3c+128"; }
};

TEST_F(CentredKeysTest, ManyAtOnceWithSmallPools) {
  CheckManyWithSmallPools("--dram_memory=64MiB");
}

TEST_F(CentredKeysTest, TheAnswerOfADeadWorkerGoesOn) {
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks"}),
                   .decode_flags = With({Memory(5 << 10)})});
  CheckDisturbed(cluster, LongRequest(600, 300, 61), SIGKILL, 150);
}

TEST_F(CentredKeysTest, AWorkerWithoutMeansSaysHowToMeasureThem) {
  std::filesystem::remove(folder() + "/key_means.safetensors");
  Process worker({"penstock-prefill", "--model=" + folder(), "--listen=127.0.0.1:0",
                  "--kv_format=" + format()},
                 folder() + "/log");
  EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0);
  EXPECT_NE(worker.Log().find("`penstock calibrate --model " + folder() + "` makes it"),
            std::string::npos)
      << worker.Log();
}

}  // namespace
}  // namespace penstock
