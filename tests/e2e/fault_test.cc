// A worker dies, hangs or drains, or the deadline passes, at each step of the handoff: the request
// ends well elsewhere or with a clear status, and the survivors reclaim all their blocks.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <tuple>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Victim { kPrefill, kDecode };

std::string VictimName(Victim victim) { return victim == Victim::kPrefill ? "prefill" : "decode"; }

class FaultTest : public testing::TestWithParam<std::tuple<Victim, std::string>> {
 protected:
  static void SetUpTestSuite() { local_ = new LocalGenerator(ModelFolder()); }
  static void TearDownTestSuite() {
    delete local_;
    local_ = nullptr;
  }

  // `workers` of each role; the first of the victim's role has the fault.
  std::unique_ptr<Cluster> StartCluster(int workers, const std::string& action) {
    const std::vector<std::string> fault = {"--fault=" + std::get<1>(GetParam()) + ":" + action};
    const bool prefill = std::get<0>(GetParam()) == Victim::kPrefill;
    Cluster::Options options{.prefill = workers, .decode = workers};
    (prefill ? options.first_prefill_flags : options.first_decode_flags) = fault;
    return std::make_unique<Cluster>(options);
  }

  Process& VictimOf(Cluster& cluster) {
    const bool prefill = std::get<0>(GetParam()) == Victim::kPrefill;
    return (prefill ? cluster.prefill() : cluster.decode()).front().process;
  }

  // A prefill worker that hangs after Committed is not needed any more: the answer may be whole.
  static void ExpectEnded(const grpc::Status& status, grpc::StatusCode code) {
    const bool whole = GetParam() == std::tuple(Victim::kPrefill, std::string("committed"));
    EXPECT_TRUE(status.error_code() == code || (whole && status.ok())) << status.error_message();
  }

  static TestRequest LongRequest(uint32_t seed) {
    TestRequest request = MakeRequests(2, 600, 2000, seed)[1];
    request.tokens_max = 24;
    return request;
  }

  static LocalGenerator* local_;
};

LocalGenerator* FaultTest::local_ = nullptr;

TEST_P(FaultTest, KilledAndTheRequestFinishesElsewhere) {
  const auto cluster = StartCluster(2, "kill");
  Process& victim = VictimOf(*cluster);
  // Placement is free to choose: ask until the victim was chosen, and died of it.
  for (uint32_t i = 0; i < 40 && victim.running(); ++i) {
    const TestRequest request = LongRequest(100 + i);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    const TestAnswer answer = Ask(cluster->client(), ToProto(request), context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster->Logs();
    EXPECT_EQ(answer.tokens[0],
              local_->Generate(request.prompt, request.sampling, request.tokens_max));
  }
  EXPECT_EQ(victim.Wait(seconds(30)), 128 + SIGKILL) << cluster->Logs();
  EXPECT_TRUE(cluster->AllBlocksFree(seconds(30))) << cluster->Logs();
}

TEST_P(FaultTest, TheClientVanishes) {
  const auto cluster = StartCluster(1, "stop");
  grpc::ClientContext context;
  auto answer = std::async(std::launch::async, [&] {
    return Ask(cluster->client(), ToProto(LongRequest(200)), context);
  });
  ASSERT_TRUE(WaitUntil([&] { return VictimOf(*cluster).stopped(); }, seconds(30)))
      << cluster->Logs();
  context.TryCancel();
  ExpectEnded(answer.get().status, grpc::StatusCode::CANCELLED);
  VictimOf(*cluster).Signal(SIGCONT);
  EXPECT_TRUE(cluster->AllBlocksFree(seconds(30))) << cluster->Logs();
}

TEST_P(FaultTest, TheDeadlinePasses) {
  const auto cluster = StartCluster(1, "stop");
  // On a busy machine the first deadlines may pass before the victim has come to its fault. They
  // are no longer, because leases would pass before them.
  for (int turn = 0; turn < 8 && !VictimOf(*cluster).stopped(); ++turn) {
    Deadline context(milliseconds(1500));
    const TestAnswer answer = Ask(cluster->client(), ToProto(LongRequest(300)), context);
    ExpectEnded(answer.status, grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  ASSERT_TRUE(WaitUntil([&] { return VictimOf(*cluster).stopped(); }, seconds(30)))
      << cluster->Logs();
  // The survivor is whole again while its peer still hangs.
  std::vector<WorkerProcess>& survivors =
      std::get<0>(GetParam()) == Victim::kPrefill ? cluster->decode() : cluster->prefill();
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto state = survivors.front().State();
        return state.has_value() && state->kv_blocks_used() == 0 &&
               state->kv_blocks_reserved() == 0;
      },
      seconds(30)))
      << cluster->Logs();
  VictimOf(*cluster).Signal(SIGCONT);
  EXPECT_TRUE(cluster->AllBlocksFree(seconds(30))) << cluster->Logs();
}

INSTANTIATE_TEST_SUITE_P(EveryStep, FaultTest,
                         testing::Combine(testing::Values(Victim::kPrefill, Victim::kDecode),
                                          testing::Values("offered", "credited", "streaming",
                                                          "landed", "committed")),
                         [](const auto& instance) {
                           return VictimName(std::get<0>(instance.param)) + "_" +
                                  std::get<1>(instance.param);
                         });

TEST(MidAnswerTest, ADecodeWorkerThatDiesInMidAnswerCostsNoToken) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1, .decode = 2});
  TestRequest request = MakeRequests(2, 300, 2000, 41)[1];
  request.tokens_max = 1200;
  request.choices = 2;
  grpc::ClientContext context;
  const auto stream = cluster.client().Generate(&context, ToProto(request));
  std::vector<std::vector<uint32_t>> tokens(2);
  bool killed = false;
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (!response.has_chunk()) continue;
    const auto& ids = response.chunk().token_ids();
    auto& choice = tokens[response.chunk().index()];
    choice.insert(choice.end(), ids.begin(), ids.end());
    if (killed || tokens[0].size() < 20) continue;
    for (WorkerProcess& worker : cluster.decode()) {
      if (worker.State()->running() == 0) continue;
      worker.process.Signal(SIGKILL);
      killed = true;
    }
  }
  const grpc::Status status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message() << cluster.Logs();
  EXPECT_TRUE(killed);
  for (uint32_t choice : {0u, 1u}) {
    EXPECT_EQ(tokens[choice],
              local.Generate(request.prompt, request.sampling, request.tokens_max, choice));
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
