// Multi-head latent attention, whose pages have one latent of a token and layer: handed over,
// encoded, restored, swapped and moved, every token is that of one process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "proto/kv_admin.grpc.pb.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/latent_model.h"
#include "tests/e2e/local_generator.h"
#include "tests/e2e/requests.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

// A pool of `blocks` blocks. A block of 16 tokens has 7,680 bytes, at a stride of 8,192.
std::string Pool(int blocks) { return fmt::format("--kv_memory={}KiB", blocks * 8); }

v1::KvStats StatsOf(const WorkerProcess& worker) {
  Deadline context(seconds(10));
  v1::KvStats stats;
  const auto channel = grpc::CreateChannel(worker.endpoint, grpc::InsecureChannelCredentials());
  const grpc::Status status = v1::KvAdmin::NewStub(channel)->Stats(&context, {}, &stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return stats;
}

uint64_t RestoresFrom(const WorkerProcess& worker, v1::KvTier tier) {
  const v1::KvStats stats = StatsOf(worker);
  for (const v1::KvTierStats& one : stats.tiers()) {
    if (one.tier() == tier) return one.restores();
  }
  return 0;
}

class LatentTest : public ::testing::Test {
 protected:
  LatentTest() { WriteLatentModel(folder_.path()); }

  LocalGenerator& Local(const char* weights = "checkpoint") {
    if (local_ == nullptr) {
      local_ = std::make_unique<LocalGenerator>(ModelHost::Options{.model = folder_.path(),
                                                                   .kv_memory = "256MiB",
                                                                   .weights = weights,
                                                                   .threads = 1,
                                                                   .step_tokens = 2048});
    }
    return *local_;
  }

  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
    Deadline context(std::chrono::minutes(4));
    return Ask(cluster.client(), ToProto(request), context, on_tokens);
  }

  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    for (uint32_t choice = 0; choice < answer.tokens.size(); ++choice) {
      EXPECT_EQ(answer.tokens[choice],
                Local().Generate(request.prompt, request.sampling, request.tokens_max, choice))
          << "choice " << choice << " of " << request.prompt.size() << " prompt tokens";
    }
  }

  void CheckAtOnce(Cluster& cluster, const std::vector<TestRequest>& requests) {
    std::vector<TestAnswer> answers(requests.size());
    std::atomic<size_t> next{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 12; ++i) {
      clients.emplace_back([&] {
        for (size_t r = next++; r < requests.size(); r = next++) {
          answers[r] = AskOne(cluster, requests[r]);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    for (size_t r = 0; r < requests.size(); ++r) Expect(cluster, requests[r], answers[r]);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
  }

  const TempFolder folder_;
  std::unique_ptr<LocalGenerator> local_;
};

TEST_F(LatentTest, ManyPromptsOverTwoByTwoWorkers) {
  Cluster cluster(
      {.model = folder_.path(),
       .prefill = 2,
       .decode = 2,
       .prefill_flags = {"--random_chunks"},
       .decode_flags = {"--speculation=ngram", "--max_draft_tokens=4", "--random_drafts"}});
  std::vector<TestRequest> requests = MakeRequests(32, 1200, Local().vocab(), 71);
  for (size_t r = 0; r < requests.size(); r += 4) requests[r].choices = 3;
  CheckAtOnce(cluster, requests);
}

TEST_F(LatentTest, FourBitWeights) {
  LocalGenerator& local = Local("int4");
  Cluster cluster({.model = folder_.path(),
                   .prefill_flags = {"--random_chunks", "--weights=int4"},
                   .decode_flags = {"--weights=int4"}});
  CheckAtOnce(cluster, MakeRequests(12, 600, local.vocab(), 72));
}

// What goes over the wire is a latent and a key of a token and layer, raw or encoded.
TEST_F(LatentTest, TheWireCarriesLatents) {
  for (const char* codec : {"raw", "lx16", "lxr"}) {
    Cluster cluster({.model = folder_.path(),
                     .prefill_flags = {"--random_chunks", fmt::format("--wire_codec={}", codec)}});
    const TestRequest request = MakeRequest(512, Local().vocab(), 73, 8);
    const TestAnswer answer = AskOne(cluster, request);
    Expect(cluster, request, answer);
    EXPECT_EQ(answer.timing.kv_bytes_moved(), 512 * kLatentTokenBytes);
    EXPECT_THAT(answer.timing.kv_codecs(), ElementsAre(codec));
    CheckAtOnce(cluster, MakeRequests(8, 900, Local().vocab(), 74));
  }
}

// Lossy codecs code the latent: every token is that of the KV which the codec makes.
TEST_F(LatentTest, LossyPolicies) {
  Cluster cluster({.model = folder_.path(),
                   .prefill_flags = {"--random_chunks", "--wire_codec=lxr", "--lossy_kv=all"},
                   .decode_flags = {"--lossy_kv=all"}});
  uint32_t seed = 80;
  for (const char* codec : {"i8", "f8", "k8v4", "i4r", "kv2"}) {
    const TestRequest request = MakeRequest(400, Local().vocab(), ++seed, 40);
    v1::GenerateRequest proto = ToProto(request);
    proto.set_kv_policy(codec);
    Deadline context(std::chrono::minutes(4));
    const TestAnswer answer = Ask(cluster.client(), proto, context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
    ASSERT_THAT(answer.timing.kv_codecs(), ElementsAre(codec));
    EXPECT_EQ(answer.tokens[0], Local().Generate(request.prompt, request.sampling,
                                                 request.tokens_max, 0, *ParseKvCodec(codec)))
        << codec;
  }
}

// Pools so small that sequences are swapped out, and prefixes come back from host memory and, after
// a restart, from the disk.
TEST_F(LatentTest, SmallPoolsAndTiers) {
  const std::vector<std::string> tiers = {Pool(60),
                                          "--dram_memory=32MiB",
                                          "--nvme_dir=" + folder_.path() + "/kv",
                                          "--nvme_size=64MiB",
                                          "--nvme_min_uses=1",
                                          "--nvme_codec=lxr"};
  std::vector<std::string> prefill = tiers;
  prefill.emplace_back("--random_chunks");
  Cluster cluster({.model = folder_.path(),
                   .prefill_flags = prefill,
                   .decode_flags = {Pool(50), "--dram_memory=32MiB", "--max_batch=5",
                                    "--local_prefill_max_tokens=0"}});
  std::vector<TestRequest> requests = MakeRequests(16, 500, Local().vocab(), 75);
  for (TestRequest& request : requests) {
    request.tokens_max = 150;
    request.sampling.stop_token_ids.clear();
  }
  CheckAtOnce(cluster, requests);
  CheckAtOnce(cluster, requests);
  WorkerProcess& worker = cluster.prefill()[0];
  EXPECT_GT(StatsOf(cluster.decode()[0]).swaps_out(), 0u);
  EXPECT_GT(RestoresFrom(worker, v1::DRAM), 0u);
  worker.process.Signal(SIGTERM);
  ASSERT_EQ(worker.process.Wait(seconds(30)), 0) << cluster.Logs();
  cluster.Restart(worker);
  CheckAtOnce(cluster, requests);
  EXPECT_GT(RestoresFrom(worker, v1::NVME), 0u);
  EXPECT_EQ(StatsOf(worker).nvme().corrupt(), 0u);
}

TEST_F(LatentTest, SaysWhatLatentsDoNotHave) {
  for (const auto& [flag, error] : {std::pair("--kv_format=f8", "latents, which are always bf16"),
                                    {"--kv_format=i4r", "latents, which are always bf16"},
                                    {"--kv_eviction=snapkv", "attention sinks and latents"}}) {
    Process worker({"penstock-prefill", "--model=" + folder_.path(), "--listen=127.0.0.1:0", flag},
                   folder_.path() + "/log");
    EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0) << flag;
    EXPECT_NE(worker.Log().find(error), std::string::npos) << flag << ": " << worker.Log();
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class LatentFailoverTest : public LatentTest, public testing::WithParamInterface<int> {};

TEST_P(LatentFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.model = folder_.path(), .decode = 2, .prefill_flags = {"--random_chunks"}});
  TestRequest request = MakeRequest(500, Local().vocab(), 76, 700);
  request.sampling.stop_token_ids.clear();
  request.choices = 2;
  WorkerProcess* victim = nullptr;
  const TestAnswer answer = AskOne(cluster, request, [&](const TestAnswer& so_far) {
    if (victim != nullptr || so_far.tokens[0].size() < 200) return;
    for (WorkerProcess& worker : cluster.decode()) {
      const auto state = worker.State();
      if (state.has_value() && state->running() > 0) victim = &worker;
    }
    if (victim != nullptr) victim->process.Signal(GetParam());
  });
  ASSERT_NE(victim, nullptr);
  Expect(cluster, request, answer);
  EXPECT_GT(answer.timing.migrations(), 0u) << "the signal came too late";
}

INSTANTIATE_TEST_SUITE_P(Signals, LatentFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
