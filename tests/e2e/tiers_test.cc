// The contract of exact_test.cc with device pools so small that every prefix has to come back from
// host memory or from NVMe and sequences are swapped out again and again. Which tier it was is read
// off the workers' counters.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <set>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "proto/kv_admin.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

template <class Service>
auto StubOf(const WorkerProcess& worker) {
  return Service::NewStub(grpc::CreateChannel(worker.endpoint, grpc::InsecureChannelCredentials()));
}

// Requests of different lengths, with at most `tokens` tokens of prompt.
std::vector<TestRequest> Requests(LocalGenerator& local, int count, int tokens, int answer) {
  auto requests = MakeRequests(count, tokens, local.vocab(), 31);
  for (TestRequest& request : requests) {
    request.prompt.resize(std::max<size_t>(request.prompt.size(), 40), 9);
    request.tokens_max = answer;
  }
  return requests;
}

uint64_t FullBlocks(const TestRequest& request) { return (request.prompt.size() - 1) / 16; }

class TiersTest : public ::testing::Test {
 protected:
  // Flags for decode workers that compute no end of a prompt themselves, so that a prefill worker
  // looks for every prompt.
  static std::vector<std::string> HandedTo(std::vector<std::string> flags) {
    flags.push_back("--local_prefill_max_tokens=0");
    return flags;
  }

  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    for (uint32_t choice = 0; choice < answer.tokens.size(); ++choice) {
      EXPECT_EQ(answer.tokens[choice],
                local_.Generate(request.prompt, request.sampling, request.tokens_max, choice));
    }
  }

  TestAnswer AskOne(Cluster& cluster, const TestRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    return Ask(cluster.client(), ToProto(request), context);
  }

  // One after the other.
  void AskInTurn(Cluster& cluster, const std::vector<TestRequest>& requests) {
    for (const TestRequest& request : requests) {
      Expect(cluster, request, AskOne(cluster, request));
    }
  }

  void AskAtOnce(Cluster& cluster, const std::vector<TestRequest>& requests) {
    std::vector<TestAnswer> answers(requests.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < requests.size(); ++i) {
      clients.emplace_back([&, i] { answers[i] = AskOne(cluster, requests[i]); });
    }
    for (std::thread& client : clients) client.join();
    for (size_t i = 0; i < requests.size(); ++i) Expect(cluster, requests[i], answers[i]);
  }

  // Runs `penstock kv`; its exit code. Its output is in kv_said_.
  int Kv(const std::string& what, const WorkerProcess& worker) {
    const std::string log = folder_.path() + "/kv." + what;
    Process process({"penstock", "kv", what, worker.endpoint, "--json"}, log);
    const int code = process.Wait(seconds(60)).value_or(-1);
    kv_said_ = process.Log();
    return code;
  }

  TempFolder folder_;
  std::string kv_said_;
  LocalGenerator local_{ModelFolder()};
};

uint64_t FullBlocks(const std::vector<TestRequest>& requests) {
  uint64_t blocks = 0;
  for (const TestRequest& request : requests) blocks += FullBlocks(request);
  return blocks;
}

TEST_F(TiersTest, EveryPrefixComesBackFromHostMemory) {
  const auto flags = TinyPool({"--dram_memory=32MiB"});
  Cluster cluster({.prefill_flags = flags, .decode_flags = HandedTo(flags)});
  std::vector<TestRequest> requests = Requests(local_, 8, 200, 12);
  for (TestRequest& request : requests) request.prompt.resize(200, 5);
  AskInTurn(cluster, requests);
  const uint64_t before = TierOf(cluster.prefill()[0], v1::DRAM).restores();
  const uint64_t decode_before = TierOf(cluster.decode()[0], v1::DRAM).restores();
  AskInTurn(cluster, requests);
  EXPECT_EQ(TierOf(cluster.prefill()[0], v1::DEVICE).hits(), 0u) << "not from a lower tier";
  EXPECT_EQ(TierOf(cluster.prefill()[0], v1::DRAM).restores() - before, FullBlocks(requests));
  EXPECT_EQ(TierOf(cluster.decode()[0], v1::DRAM).restores() - decode_before, FullBlocks(requests));
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// A stopped worker saves its host memory, so that all blocks come from the disk.
TEST_F(TiersTest, EveryPrefixComesBackFromNvmeAfterARestart) {
  const auto flags = TinyPool({"--dram_memory=32MiB", "--nvme_dir=" + folder_.path() + "/kv",
                               "--nvme_size=64MiB", "--nvme_min_uses=1", "--nvme_codec=lxr"});
  Cluster cluster({.prefill_flags = flags, .decode_flags = HandedTo(flags)});
  std::vector<TestRequest> requests = Requests(local_, 8, 200, 12);
  for (TestRequest& request : requests) request.prompt.resize(200, 5);
  AskInTurn(cluster, requests);
  // The last prompt is still in device pages: others push it out.
  AskInTurn(cluster, {requests.begin(), requests.begin() + 2});
  WorkerProcess& worker = cluster.prefill()[0];
  worker.process.Signal(SIGTERM);
  ASSERT_EQ(worker.process.Wait(seconds(30)), 0) << cluster.Logs();
  cluster.Restart(worker);
  ASSERT_TRUE(WaitUntil([&] { return TierOf(worker, v1::NVME).blocks() >= FullBlocks(requests); },
                        seconds(30)))
      << StatsOf(worker).DebugString();
  ASSERT_TRUE(WaitUntil([&] { return AskOne(cluster, requests[0]).status.ok(); }, seconds(30)));
  AskInTurn(cluster, requests);
  EXPECT_GE(TierOf(worker, v1::NVME).restores(), FullBlocks(requests) - FullBlocks(requests[0]));
  EXPECT_EQ(StatsOf(worker).nvme().corrupt(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// No room in host memory either: blocks pass through it to the disk and back, while it runs.
TEST_F(TiersTest, BlocksPassThroughHostMemoryToNvmeAndBack) {
  const auto flags = TinyPool({"--dram_memory=1MiB", "--nvme_dir=" + folder_.path() + "/kv",
                               "--nvme_size=64MiB", "--nvme_min_uses=1"});
  std::vector<std::string> encoded = flags;
  encoded.push_back("--nvme_codec=lx16");
  Cluster cluster({.prefill_flags = encoded, .decode_flags = HandedTo(flags)});
  const std::vector<TestRequest> requests = Requests(local_, 16, 200, 12);
  // Blocks that the disk is too slow for are dropped, so on a busy machine more rounds are needed.
  const auto came_back = [&](const WorkerProcess& worker) {
    return TierOf(worker, v1::NVME).restores() > FullBlocks(requests);
  };
  for (int round = 0; round < 3; ++round) AskInTurn(cluster, requests);
  for (int round = 3; round < 9; ++round) {
    if (came_back(cluster.prefill()[0]) && came_back(cluster.decode()[0])) break;
    AskInTurn(cluster, requests);
  }
  for (const WorkerProcess* worker : {&cluster.prefill()[0], &cluster.decode()[0]}) {
    EXPECT_TRUE(came_back(*worker)) << worker->role << StatsOf(*worker).DebugString();
    EXPECT_GT(StatsOf(*worker).nvme().bytes_written(), 0u);
    EXPECT_EQ(StatsOf(*worker).nvme().corrupt(), 0u);
    EXPECT_EQ(Kv("verify", *worker), 0) << kv_said_;
    EXPECT_NE(kv_said_.find("\"corrupt\":0"), std::string::npos) << kv_said_;
    if (worker->role == "prefill") {
      EXPECT_NE(kv_said_.find("\"lx16\":"), std::string::npos) << kv_said_;
    }
    EXPECT_EQ(Kv("stats", *worker), 0);
    EXPECT_NE(kv_said_.find("\"write_amplification\":"), std::string::npos) << kv_said_;
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Each of these answers grows to three times its prompt, and two of them do not fit.
TEST_F(TiersTest, SequencesAreSwappedOutAgainAndAgain) {
  Cluster cluster(
      {.prefill_flags = TinyPool({}), .decode_flags = TinyPool({"--dram_memory=64MiB"})});
  std::vector<TestRequest> requests = Requests(local_, 16, 60, 150);
  for (size_t i = 0; i < requests.size(); i += 5) {
    requests[i].choices = 2;
    requests[i].tokens_max = 60;
  }
  // How many answers meet depends on the machine's speed, so they get some rounds.
  v1::KvStats stats;
  for (int round = 0; round < 5 && stats.swaps_out() < requests.size(); ++round) {
    AskAtOnce(cluster, requests);
    // The store gives slots back behind the answers.
    EXPECT_TRUE(WaitUntil(
        [&] {
          stats = StatsOf(cluster.decode()[0]);
          return stats.swapped_blocks() == 0;
        },
        seconds(30)));
  }
  EXPECT_GE(stats.swaps_out(), requests.size());
  EXPECT_EQ(stats.swaps_in(), stats.swaps_out());
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST_F(TiersTest, ACallThatIsCancelledWhileSwappedOutLeavesNothing) {
  Cluster cluster(
      {.prefill_flags = TinyPool({}), .decode_flags = TinyPool({"--dram_memory=64MiB"})});
  const std::vector<TestRequest> requests = Requests(local_, 12, 60, 160);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::milliseconds(100 + 30 * i));
      Ask(cluster.client(), ToProto(requests[i]), context);
    });
  }
  for (std::thread& client : clients) client.join();
  // A call that was swapped out has no block on the device, so its end shows in this count alone.
  EXPECT_TRUE(
      WaitUntil([&] { return StatsOf(cluster.decode()[0]).swapped_blocks() == 0; }, seconds(30)));
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  AskInTurn(cluster, {requests.begin(), requests.begin() + 2});
}

TEST_F(TiersTest, AFlushedWorkerHasForgottenAll) {
  const auto flags = TinyPool({"--dram_memory=32MiB", "--nvme_dir=" + folder_.path() + "/kv",
                               "--nvme_size=64MiB", "--nvme_min_uses=1"});
  // Else the prefill worker might read the prompt from the decode worker.
  Cluster cluster({.prefill_flags = flags,
                   .decode_flags = HandedTo(flags),
                   .router_flags = {"--peer_reads=off"}});
  const std::vector<TestRequest> requests = Requests(local_, 4, 200, 4);
  AskInTurn(cluster, requests);
  ASSERT_TRUE(cluster.AllBlocksFree(seconds(30)));
  WorkerProcess& worker = cluster.prefill()[0];
  EXPECT_GT(TierOf(worker, v1::DEVICE).blocks() + TierOf(worker, v1::DRAM).blocks(), 0u);
  ASSERT_EQ(Kv("flush", worker), 0);
  for (const v1::KvTier tier : {v1::DEVICE, v1::DRAM, v1::NVME}) {
    EXPECT_EQ(TierOf(worker, tier).blocks(), 0u) << v1::KvTier_Name(tier);
  }
  const TestAnswer again = AskOne(cluster, requests[0]);
  Expect(cluster, requests[0], again);
  EXPECT_EQ(again.usage.cached_tokens(), 0u);
}

// The blocks that a worker has told routers of, and from which tier.
std::map<std::string, v1::KvTier> Announced(const WorkerProcess& worker,
                                            const std::function<bool(size_t)>& enough) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  const auto stream = StubOf<v1::WorkerStatus>(worker)->WatchBlocks(&context, {});
  std::map<std::string, v1::KvTier> tiers;
  size_t on_nvme = 0;
  const auto each = [&](const std::string& ids, v1::KvTier tier) {
    for (size_t i = 0; i < ids.size(); i += 16) {
      v1::KvTier& here = tiers[ids.substr(i, 16)];
      on_nvme += (tier == v1::NVME ? 1 : 0) - (here == v1::NVME ? 1 : 0);
      here = tier;
    }
  };
  v1::BlockEvents batch;
  while (stream->Read(&batch)) {
    for (const v1::BlockEvent& event : batch.events()) {
      if (event.has_stored()) each(event.stored().ids(), event.stored().tier());
      if (event.has_moved()) each(event.moved().ids(), event.moved().tier());
      if (event.has_removed()) each(event.removed().ids(), v1::KV_TIER_UNSPECIFIED);
    }
    if (!batch.snapshot() && enough(on_nvme)) break;
  }
  context.TryCancel();
  return tiers;
}

// Blocks that were reported on the disk are there after SIGKILL, and the answers are exact.
TEST_F(TiersTest, AWorkerKilledWhileItSpillsRestartsWarm) {
  const auto flags = TinyPool({"--dram_memory=1MiB", "--nvme_dir=" + folder_.path() + "/kv",
                               "--nvme_size=64MiB", "--nvme_min_uses=1"});
  Cluster cluster({.prefill_flags = flags, .decode_flags = HandedTo(TinyPool({}))});
  WorkerProcess& worker = cluster.prefill()[0];
  const std::vector<TestRequest> requests = Requests(local_, 24, 200, 2);
  std::atomic<bool> killed{false};
  std::thread client([&] {
    for (size_t i = 0; !killed; ++i) AskOne(cluster, requests[i % requests.size()]);
  });
  const auto said = Announced(worker, [](size_t on_nvme) { return on_nvme >= 60; });
  worker.process.Signal(SIGKILL);
  const bool ended = worker.process.Wait(seconds(30)).has_value();
  killed = true;
  client.join();
  ASSERT_TRUE(ended);
  cluster.Restart(worker);
  size_t announced = 0;
  for (const auto& [id, tier] : said) announced += tier == v1::NVME ? 1 : 0;
  const auto after = Announced(worker, [&](size_t on_nvme) { return on_nvme >= announced; });
  for (const auto& [id, tier] : said) {
    if (tier != v1::NVME) continue;
    EXPECT_TRUE(after.contains(id) && after.at(id) != v1::KV_TIER_UNSPECIFIED) << "lost";
  }
  ASSERT_TRUE(WaitUntil([&] { return AskOne(cluster, requests[0]).status.ok(); }, seconds(30)));
  AskInTurn(cluster, requests);
  EXPECT_GT(TierOf(worker, v1::NVME).restores(), 0u);
  EXPECT_EQ(StatsOf(worker).nvme().corrupt(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
