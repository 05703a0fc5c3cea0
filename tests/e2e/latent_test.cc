// Multi-head latent attention, whose pages have one latent of a token and layer: handed over,
// encoded, restored, swapped and moved, every token is that of one process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/e2e/models/model_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

// A pool of `blocks` blocks. A block of 16 tokens has 7,680 bytes, at a stride of 8,192.
std::string Pool(int blocks) { return fmt::format("--kv_memory={}KiB", blocks * 8); }

class LatentTest : public ModelTest {
 protected:
  LatentTest() {
    WriteLatentModel(folder());
    Load();
  }
};

TEST_F(LatentTest, ManyPromptsOverTwoByTwoWorkers) {
  Cluster cluster(
      {.model = folder(),
       .prefill = 2,
       .decode = 2,
       .prefill_flags = {"--random_chunks"},
       .decode_flags = {"--speculation=ngram", "--max_draft_tokens=4", "--random_drafts"}});
  std::vector<TestRequest> requests = MakeRequests(32, 1200, local().vocab(), 71);
  for (size_t r = 0; r < requests.size(); r += 4) requests[r].choices = 3;
  CheckAtOnce(cluster, requests);
}

TEST_F(LatentTest, FourBitWeights) {
  Load("int4");
  Cluster cluster({.model = folder(),
                   .prefill_flags = {"--random_chunks", "--weights=int4"},
                   .decode_flags = {"--weights=int4"}});
  CheckAtOnce(cluster, MakeRequests(12, 600, local().vocab(), 72));
}

// What goes over the wire is a latent and a key of a token and layer, raw or encoded.
TEST_F(LatentTest, TheWireCarriesLatents) {
  for (const char* codec : {"raw", "lx16", "lxr"}) {
    Cluster cluster({.model = folder(),
                     .prefill_flags = {"--random_chunks", fmt::format("--wire_codec={}", codec)}});
    const TestRequest request = MakeRequest(512, local().vocab(), 73, 8);
    const TestAnswer answer = AskOne(cluster, request);
    Expect(cluster, request, answer);
    EXPECT_EQ(answer.timing.kv_bytes_moved(), 512 * kLatentTokenBytes);
    EXPECT_THAT(answer.timing.kv_codecs(), ElementsAre(codec));
    CheckAtOnce(cluster, MakeRequests(8, 900, local().vocab(), 74));
  }
}

// Lossy codecs code the latent: every token is that of the KV which the codec makes.
TEST_F(LatentTest, LossyPolicies) {
  Cluster cluster({.model = folder(),
                   .prefill_flags = {"--random_chunks", "--wire_codec=lxr", "--lossy_kv=all"},
                   .decode_flags = {"--lossy_kv=all"}});
  uint32_t seed = 80;
  for (const char* codec : {"i8", "f8", "k8v4", "i4r", "kv2"}) {
    const TestRequest request = MakeRequest(400, local().vocab(), ++seed, 40);
    v1::GenerateRequest proto = ToProto(request);
    proto.set_kv_policy(codec);
    Deadline context(std::chrono::minutes(4));
    const TestAnswer answer = Ask(cluster.client(), proto, context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
    ASSERT_THAT(answer.timing.kv_codecs(), ElementsAre(codec));
    EXPECT_EQ(answer.tokens[0], local().Generate(request.prompt, request.sampling,
                                                 request.tokens_max, 0, *ParseKvCodec(codec)))
        << codec;
  }
}

// Pools so small that sequences are swapped out, and prefixes come back from host memory and, after
// a restart, from the disk.
TEST_F(LatentTest, SmallPoolsAndTiers) {
  const std::vector<std::string> tiers = {Pool(60),
                                          "--dram_memory=32MiB",
                                          "--nvme_dir=" + folder() + "/kv",
                                          "--nvme_size=64MiB",
                                          "--nvme_min_uses=1",
                                          "--nvme_codec=lxr"};
  std::vector<std::string> prefill = tiers;
  prefill.emplace_back("--random_chunks");
  Cluster cluster({.model = folder(),
                   .prefill_flags = prefill,
                   .decode_flags = {Pool(50), "--dram_memory=32MiB", "--max_batch=5",
                                    "--local_prefill_max_tokens=0"}});
  std::vector<TestRequest> requests = MakeRequests(16, 500, local().vocab(), 75);
  for (TestRequest& request : requests) {
    request.tokens_max = 150;
    request.sampling.stop_token_ids.clear();
  }
  WorkerProcess& worker = cluster.prefill()[0];
  const auto swaps = [&] { return StatsOf(cluster.decode()[0]).swaps_out(); };
  CheckAtOnce(cluster, requests);
  // How many answers meet depends on the machine's speed.
  const auto swapped = [&] {
    CheckAtOnce(cluster, requests);
    return swaps() > 0;
  };
  EXPECT_TRUE(WaitUntil(swapped, seconds(150)));
  EXPECT_GT(TierOf(worker, v1::DRAM).restores(), 0u);
  worker.process.Signal(SIGTERM);
  ASSERT_EQ(worker.process.Wait(seconds(30)), 0) << cluster.Logs();
  cluster.Restart(worker);
  EXPECT_TRUE(WaitUntil([&] { return HasFoundNvme(worker); }, seconds(30)));
  CheckAtOnce(cluster, requests);
  EXPECT_GT(TierOf(worker, v1::NVME).restores(), 0u);
  EXPECT_EQ(StatsOf(worker).nvme().corrupt(), 0u);
}

TEST_F(LatentTest, SaysWhatLatentsDoNotHave) {
  for (const auto& [flag, error] : {std::pair("--kv_format=f8", "latents, which are always bf16"),
                                    {"--kv_format=i4r", "latents, which are always bf16"},
                                    {"--kv_eviction=snapkv", "attention sinks and latents"}}) {
    Process worker({"penstock-prefill", "--model=" + folder(), "--listen=127.0.0.1:0", flag},
                   folder() + "/log");
    EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0) << flag;
    EXPECT_NE(worker.Log().find(error), std::string::npos) << flag << ": " << worker.Log();
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class LatentFailoverTest : public LatentTest, public testing::WithParamInterface<int> {};

TEST_P(LatentFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.model = folder(), .decode = 2, .prefill_flags = {"--random_chunks"}});
  CheckDisturbed(cluster, LongRequest(500, 700, 76), GetParam(), 200);
}

INSTANTIATE_TEST_SUITE_P(Signals, LatentFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
