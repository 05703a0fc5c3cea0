// KV pages in a file that is larger than the memory for them: answers do not change, sequences that
// are longer than the memory are decoded, and the memory stays within its limit.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/cluster/worker_metric.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"
#include "tests/support/open_files.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

// A block of the bundled model takes 40 KiB, of five layers, and its bounds 2.5 KiB. The memory is
// that of some 31 blocks, or 500 tokens; the file has 153.
constexpr double kMemory = 1700 * 1024, kBounds = 153 * 2560;

std::vector<std::string> Flags(std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"--kv_memory=1700KiB", "--kv_file_size=6MiB", "--kv_file_dir=" + BinaryFolder(),
               "--kv_selection=all", "--dram_memory=0B"});
  return more;
}

std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  local.Select(policy);
  return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
}

TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed, int answer) {
  TestRequest request = MakeRequest(tokens, vocab, seed, answer);
  request.sampling.stop_token_ids.clear();
  return request;
}

// Waits until no more pages than the memory has room for are in it.
void WaitForRoom(const WorkerProcess& worker) {
  EXPECT_TRUE(WaitUntil(
      [&] { return MetricOf(worker, "penstock_kv_file_resident_bytes") <= kMemory - kBounds; },
      seconds(30)))
      << MetricOf(worker, "penstock_kv_file_resident_bytes");
}

void ExpectWithinMemory(const WorkerProcess& worker) {
  EXPECT_EQ(MetricOf(worker, "penstock_kv_file_bytes"), 153 * 40960);
  EXPECT_EQ(MetricOf(worker, "penstock_kv_file_capacity_bytes"), kMemory - kBounds);
  EXPECT_GT(MetricOf(worker, "penstock_kv_file_hits_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_kv_file_misses_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_kv_file_read_bytes_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_kv_file_dropped_bytes_total"), 0);
  WaitForRoom(worker);
}

// Almost four times as long as the memory, exact and with a selection, one after the other. The
// second time the prompt is cached, and most of it is not in memory.
TEST(KvFileTest, DecodesSequencesThatAreLongerThanTheMemory) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = Flags({"--random_chunks"}), .decode_flags = Flags()});
  const TestRequest request = Prompt(1900, local.vocab(), 5, 40);
  struct Case {
    const char* policy;
    uint64_t layers_needed;  // of 119 blocks, by the first token: all five, or the first two
  };
  for (const auto& [policy, layers_needed] : {Case{"", 5 * 119}, Case{"quest:128", 2 * 119}}) {
    for (int time = 0; time < 2; ++time) {
      const TestAnswer answer = AskFor(cluster, request, policy);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
      EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
      WaitForRoom(cluster.prefill()[0]);
      WaitForRoom(cluster.decode()[0]);
      if (time == 0) continue;
      const auto read = static_cast<double>(answer.timing.kv_bytes_read());
      EXPECT_GE(read, static_cast<double>(layers_needed * 8192) - (kMemory - kBounds)) << policy;
    }
  }
  ExpectWithinMemory(cluster.prefill()[0]);
  ExpectWithinMemory(cluster.decode()[0]);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Prompts that are shared in part, with choices, chunks at random and guesses that are checked.
TEST(KvFileTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 24;
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .prefill_flags = Flags({"--random_chunks"}),
                   .decode_flags = Flags({"--speculation=ngram", "--random_drafts"})});
  const std::vector<std::string> policies = {"quest:64", "", "quest:100", "", "quest:4096"};
  const std::vector<TestRequest> prompts = MakeRequests(8, 400, local.vocab(), 17);
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(prompts[static_cast<size_t>(i) % prompts.size()]);
    requests.back().choices = i % 3 == 0 ? 2 : 1;
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string& policy = policies[i % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    for (int choice = 0; choice < requests[i].choices; ++choice) {
      const auto c = static_cast<uint32_t>(choice);
      EXPECT_EQ(answers[i].tokens[c], Expected(local, requests[i], policy, c))
          << "request " << i << " under " << policy;
    }
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// A file of 51 blocks over tiers: what the prompts evict from it is stored, and comes back.
TEST(KvFileTest, TiersBelowTheFileStoreAndRestore) {
  const TempFolder nvme;
  const std::vector<std::string> flags = {
      "--kv_memory=1MiB",   "--kv_file_size=2MiB",       "--kv_file_dir=" + BinaryFolder(),
      "--dram_memory=2MiB", "--nvme_dir=" + nvme.path(), "--nvme_size=64MiB"};
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags});
  // Blocks that the disk is too slow for are dropped, so on a busy machine more rounds are needed.
  int missed = 8;
  for (int round = 0; round < 6 && missed > 0; ++round) {
    missed = 0;
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const TestRequest request = Prompt(400, local.vocab(), 40 + seed, 12);
      const TestAnswer answer = AskFor(cluster, request, "");
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
      EXPECT_EQ(answer.tokens[0], Expected(local, request, "")) << seed;
      missed += answer.usage.cached_tokens() == 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(missed, 0) << "prompts of which nothing has come back";
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The file is cut while the decode worker needs it, as by a disk that is lost: the worker ends, and
// the answer goes on with the same tokens at the other one. Where the machine is busy, an answer
// may end before the file is cut, and the next one meets that.
TEST(KvFileTest, ALostFileEndsTheWorkerAndNoAnswer) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1, .decode = 2, .prefill_flags = Flags(), .decode_flags = Flags()});
  const TestRequest request = Prompt(1200, local.vocab(), 29, 120);
  WorkerProcess* lost = nullptr;
  uint32_t migrations = 0;
  for (int turn = 0; turn < 10 && migrations == 0; ++turn) {
    const TestAnswer answer = AskFor(cluster, request, "quest:96", [&](const TestAnswer& so_far) {
      if (lost != nullptr || so_far.tokens[0].size() < 20) return;
      lost = cluster.RunningDecoder();
      if (lost == nullptr) return;
      const auto files = UnnamedFiles(std::to_string(lost->process.pid()), BinaryFolder());
      ASSERT_EQ(files.size(), 1u);
      ASSERT_EQ(truncate(files[0].c_str(), 0), 0);
    });
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, "quest:96"));
    migrations = answer.timing.migrations();
  }
  ASSERT_NE(lost, nullptr);
  EXPECT_TRUE(lost->process.Wait(seconds(30)).has_value());
  EXPECT_GT(migrations, 0u);
}

// The parameter is the signal that the decode worker gets in the middle of the answer.
class KvFileFailoverTest : public testing::TestWithParam<int> {};

TEST_P(KvFileFailoverTest, TheAnswerIsTheUndisturbedOne) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1, .decode = 2, .prefill_flags = Flags(), .decode_flags = Flags()});
  const TestRequest request = Prompt(1200, local.vocab(), 23, 200);
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 40},
      [&](const auto& on_tokens) { return AskFor(cluster, request, "quest:96", on_tokens); });
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, "quest:96"));
}

INSTANTIATE_TEST_SUITE_P(Signals, KvFileFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
