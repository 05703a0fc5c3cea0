// Workers on emulated GPUs that guess with the model's layer for multi-token prediction: whatever
// it guesses, every token is that of one process on the same kind of GPU without it.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/expert_model.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/e2e/models/model_fixture.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr double kShare = 0.045;  // of the GPU's memory
constexpr uint64_t kTokenBytes = (2 + 1) * (512 + 64) * 2;
constexpr uint64_t kBlockBytes = (16 * kTokenBytes + 4095) / 4096 * 4096;

using Flags = std::vector<std::string>;

Flags OnGpu(const Flags& more = {}, double share = kShare) {
  Flags flags = {"--device=cuda:0", "--speculation=mtp",
                 fmt::format("--gpu_memory_utilization={:.9f}", share)};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

class GpuMtpTest : public ModelTest {
 protected:
  GpuMtpTest() { WriteLargeMtpModel(folder()); }
  void LoadOnGpus(int count = 1) {
    LoadOn({.step_tokens = 300,
            .device = "cuda:0",
            .gpu_memory_utilization = kShare,
            .tensor_parallel = count,
            .nccl_library = FAKE_NCCL});
  }
  // Some greedy, some drawn at random; some with two choices.
  std::vector<TestRequest> Mixed(int count, uint32_t seed, int tokens_max) {
    std::vector<TestRequest> requests = MakeRequests(count, 200, local().vocab(), seed);
    for (size_t r = 0; r < requests.size(); ++r) {
      requests[r].tokens_max = tokens_max;
      requests[r].choices = 1 + static_cast<int>(r % 4 == 0);
      if (r % 3 == 1) requests[r].sampling.temperature = 0;
    }
    return requests;
  }
};

// The layer is a layer of the pages, which the wire carries.
TEST_F(GpuMtpTest, SomeGuessesAreRight) {
  LoadOnGpus();
  Cluster cluster({.model = folder(),
                   .prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu({"--random_drafts", "--wire_codec=raw"}),
                   .worker_suffix = "-emulated"});
  TestRequest request = LongRequest(64, 60, 90);
  request.sampling.temperature = 0;
  const TestAnswer answer = AskOne(cluster, request);
  Expect(cluster, request, answer);
  EXPECT_EQ(answer.timing.kv_bytes_moved(), 64 * kTokenBytes);
  const auto state = cluster.decode()[0].State();
  EXPECT_EQ(state->mtp_tokens_accepted(), answer.usage.accepted_draft_tokens());
  EXPECT_GT(state->mtp_tokens(), 10u);
  EXPECT_GT(8 * state->mtp_tokens_accepted(), state->mtp_tokens()) << state->DebugString();
}

TEST_F(GpuMtpTest, ChangesNoToken) {
  LoadOnGpus();
  Cluster cluster({.model = folder(),
                   .prefill = 2,
                   .decode = 2,
                   .prefill_flags = OnGpu({"--random_chunks", "--chunk_tokens=96"}),
                   .decode_flags = OnGpu({"--max_draft_tokens=4", "--random_drafts"}),
                   .worker_suffix = "-emulated"});
  const std::vector<TestRequest> requests = Mixed(5, 91, 20);
  CheckAtOnce(cluster, requests);
  CheckAtOnce(cluster, requests);  // behind cached prefixes
  uint64_t right = 0;
  for (WorkerProcess& worker : cluster.decode()) {
    const auto state = worker.State();
    right += state->mtp_tokens_accepted();
    EXPECT_EQ(state->draft_tokens(), state->mtp_tokens());
  }
  EXPECT_GT(right, 0u);
}

// The decode worker's pool has room for two of the sessions, so they are swapped out.
TEST_F(GpuMtpTest, SwapsChangeNoToken) {
  constexpr double kDeviceBytes = 8.0 * (1 << 30);
  const auto cluster_of = [&](double share) {
    return Cluster::Options{
        .model = folder(),
        .prefill_flags = OnGpu(),
        .decode_flags = OnGpu({"--dram_memory=16MiB", "--max_batch=6", "--random_drafts"}, share),
        .worker_suffix = "-emulated"};
  };
  double surplus = 0;
  {
    Cluster measured(cluster_of(kShare));
    const auto state = measured.decode().front().State();
    ASSERT_TRUE(state.has_value());
    surplus = static_cast<double>(state->kv_blocks_total()) - 21.5;  // 21 or 22 blocks
  }
  LoadOnGpus();
  Cluster cluster(cluster_of(kShare - surplus * static_cast<double>(kBlockBytes) / kDeviceBytes));
  EXPECT_LE(cluster.decode().front().State()->kv_blocks_total(), 22u);
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(LongRequest(80, 45, 370 + i));
  const auto swaps = [&] { return StatsOf(cluster.decode().front()).swaps_out(); };
  // How many answers meet depends on the machine's speed.
  const auto swapped = [&] {
    CheckAtOnce(cluster, requests);
    return swaps() > 0;
  };
  EXPECT_TRUE(WaitUntil(swapped, std::chrono::seconds(200)));
  EXPECT_GT(cluster.decode().front().State()->mtp_tokens_accepted(), 0u);
}

// Each GPU of a worker has the layer's part of its heads.
TEST_F(GpuMtpTest, SeveralGpusChangeNoToken) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  LoadOnGpus(2);
  const Flags degree = {"--tensor_parallel=2", "--nccl_library=" FAKE_NCCL, "--gpu_graphs=always"};
  Flags prefill = degree, decode = degree;
  prefill.emplace_back("--random_chunks");
  decode.emplace_back("--random_drafts");
  Cluster cluster({.model = folder(),
                   .prefill_flags = OnGpu(prefill),
                   .decode_flags = OnGpu(decode),
                   .worker_suffix = "-emulated"});
  CheckAtOnce(cluster, Mixed(6, 92, 20));
  EXPECT_GT(cluster.decode()[0].State()->mtp_tokens_accepted(), 0u);
}

// Sequences that evict have no guesses, and those that select pages have some. The layer has keys
// and values of heads here, and its guesses are random.
TEST(GpuMtpPoliciesTest, AnswersUnderPoliciesAreThoseWithoutTheLayer) {
  const TempFolder model;
  WriteGlmMtpModel(model.path());
  LocalGenerator local({.model = model.path(),
                        .step_tokens = 220,
                        .device = "cuda:0",
                        .gpu_memory_utilization = kShare,
                        .evicts = true,
                        .selects = true});
  Cluster cluster(
      {.model = model.path(),
       .prefill_flags = OnGpu({"--kv_eviction=all", "--kv_selection=all", "--random_chunks"}),
       .decode_flags = OnGpu({"--kv_eviction=all", "--kv_selection=all", "--random_drafts"}),
       .worker_suffix = "-emulated"});
  const std::vector<std::string> policies = {"snapkv:64+32", "", "quest:64", "keydiff:64+16",
                                             "tova:64+16"};
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    requests.push_back(MakeRequest(90 + 13 * static_cast<int>(i), local.vocab(), 500 + i, 30));
    requests.back().sampling.stop_token_ids.clear();
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  for (size_t i = 0; i < requests.size(); ++i) {
    const TestRequest& request = requests[i];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    const bool evicts = i != 1 && i != 2;
    if (!evicts) local.Select(policies[i]);
    const std::vector<uint32_t> want =
        evicts ? local.GenerateEvicted(request.prompt, request.sampling, request.tokens_max,
                                       policies[i])
               : local.Generate(request.prompt, request.sampling, request.tokens_max);
    local.Select("");
    EXPECT_EQ(answers[i].tokens[0], want) << policies[i];
  }
  EXPECT_GT(cluster.decode()[0].State()->mtp_tokens(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// `penstock plan` counts the layer for workers on GPUs.
TEST_F(GpuMtpTest, ThePlanCountsTheLayer) {
  const auto plan = [&](const Flags& more) {
    Flags command = {"penstock", "plan", "--model", folder(), "--hardware", "h200", "--json"};
    command.insert(command.end(), more.begin(), more.end());
    Process process(command, folder() + fmt::format("/plan{}", more.size()));
    EXPECT_EQ(process.Wait(std::chrono::seconds(60)), 0) << process.Log();
    return nlohmann::json::parse(process.Log());
  };
  const auto with = plan({"--mtp"}), without = plan({});
  EXPECT_EQ(without["block_bytes"], 16 * 2 * 576 * 2);
  EXPECT_EQ(with["block_bytes"], kBlockBytes);
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class GpuMtpFailoverTest : public GpuMtpTest, public testing::WithParamInterface<int> {};

TEST_P(GpuMtpFailoverTest, TheAnswerIsTheUndisturbedOne) {
  LoadOnGpus();
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = OnGpu({"--random_chunks"}),
                   .decode_flags = OnGpu({"--random_drafts"}),
                   .worker_suffix = "-emulated"});
  CheckDisturbed(cluster, LongRequest(60, 50, 93), GetParam(), 20);
}

INSTANTIATE_TEST_SUITE_P(Signals, GpuMtpFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
