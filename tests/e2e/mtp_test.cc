// Speculation with the model's own layer for multi-token prediction (MTP): whatever it guesses,
// every token is that of one process without it. The layer's keys and values are one more layer of
// the pages, so they go where those go: over the wire, into caches, to other workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/grammar_oracle.h"
#include "tests/e2e/latent_model.h"
#include "tests/e2e/local_generator.h"
#include "tests/e2e/requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr char kMtp[] = "--speculation=mtp";
constexpr uint64_t kTokenBytes = (7 + 1) * (64 + 16) * 2;

class MtpTest : public ::testing::Test {
 protected:
  MtpTest() {
    WriteMtpModel(folder_.path());
    local_ = std::make_unique<LocalGenerator>(ModelHost::Options{
        .model = folder_.path(), .kv_memory = "256MiB", .threads = 1, .step_tokens = 2048});
  }

  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
    Deadline context(std::chrono::minutes(4));
    return Ask(cluster.client(), ToProto(request), context, on_tokens);
  }

  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    if (request.beams > 0) {
      const BeamRules rules{
          .width = request.beams, .answers = request.choices, .tokens_max = request.tokens_max};
      EXPECT_EQ(answer.tokens, local_->Search(request.prompt, request.sampling, rules));
      return;
    }
    for (uint32_t choice = 0; choice < answer.tokens.size(); ++choice) {
      EXPECT_EQ(answer.tokens[choice],
                local_->Generate(request.prompt, request.sampling, request.tokens_max, choice))
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

TEST_F(MtpTest, SomeGuessesAreRight) {
  Cluster cluster({.model = folder_.path(),
                   .prefill_flags = {kMtp},
                   .decode_flags = {kMtp, "--random_drafts"}});
  TestRequest request = MakeRequest(60, local_->vocab(), 90, 80);
  request.sampling = {.temperature = 0};
  const TestAnswer answer = AskOne(cluster, request);
  Expect(cluster, request, answer);
  EXPECT_GT(answer.usage.accepted_draft_tokens(), 0u) << answer.usage.DebugString();
  const auto state = cluster.decode()[0].State();
  EXPECT_EQ(state->mtp_tokens_accepted(), answer.usage.accepted_draft_tokens());
  EXPECT_EQ(state->draft_tokens_accepted(), state->mtp_tokens_accepted());
}

TEST_F(MtpTest, ChangesNoToken) {
  Cluster cluster(
      {.model = folder_.path(),
       .prefill = 2,
       .decode = 2,
       .prefill_flags = {"--random_chunks", kMtp},
       .decode_flags = {kMtp, "--max_draft_tokens=4", "--random_drafts"},
       .first_decode_flags = {"--kv_memory=1MiB", "--dram_memory=32MiB", "--max_batch=5"}});
  std::vector<TestRequest> requests = MakeRequests(40, 400, local_->vocab(), 91);
  for (size_t r = 0; r < requests.size(); ++r) {
    requests[r].tokens_max = 60;
    requests[r].choices = 1 + static_cast<int>(r % 5 == 0);
    if (r % 7 == 1) requests[r].sampling.logit_bias = {{7, 4.0f}, {9, -3.0f}};
  }
  const GrammarOracle grammars(folder_.path(), local_->vocab());
  grammars.ConstrainSome(requests);
  for (size_t r = 5; r < requests.size(); r += 9) {
    if (requests[r].sampling.constraint != nullptr) continue;
    requests[r].prompt.resize(std::min<size_t>(requests[r].prompt.size(), 100));
    requests[r].beams = 3;
  }
  CheckAtOnce(cluster, requests);
  CheckAtOnce(cluster, requests);  // behind cached prefixes
  for (WorkerProcess& worker : cluster.decode()) {
    const auto state = worker.State();
    EXPECT_GT(state->mtp_tokens_accepted(), 0u);
    EXPECT_GT(state->mtp_tokens(), state->mtp_tokens_accepted());
    EXPECT_EQ(state->draft_tokens(), state->mtp_tokens());
  }
}

// The layer is a layer of the pages.
TEST_F(MtpTest, TheWireCarriesTheLayer) {
  Cluster cluster({.model = folder_.path(), .prefill_flags = {kMtp}, .decode_flags = {kMtp}});
  const TestRequest request = MakeRequest(512, local_->vocab(), 92, 8);
  const TestAnswer answer = AskOne(cluster, request);
  Expect(cluster, request, answer);
  EXPECT_EQ(answer.timing.kv_bytes_moved(), 512 * kTokenBytes);
}

TEST_F(MtpTest, SaysWhatStandsInTheWay) {
  const std::string draft = "--draft_model=" + folder_.path();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--model=" + ModelFolder()}, "num_nextn_predict_layers is 0 or absent"},
      {{"--model=" + folder_.path(), "--device=cuda:0"}, "needs device=cpu"},
      {{"--model=" + folder_.path(), draft}, "only one of them can guess"},
  };
  for (const auto& [flags, error] : cases) {
    std::vector<std::string> command = {"penstock-decode", "--listen=127.0.0.1:0", kMtp};
    command.insert(command.end(), flags.begin(), flags.end());
    Process worker(command, folder_.path() + "/log");
    EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0) << error;
    EXPECT_NE(worker.Log().find(error), std::string::npos) << worker.Log();
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class MtpFailoverTest : public MtpTest, public testing::WithParamInterface<int> {};

TEST_P(MtpFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.model = folder_.path(),
                   .decode = 2,
                   .prefill_flags = {"--random_chunks", kMtp},
                   .decode_flags = {kMtp, "--random_drafts"}});
  TestRequest request = MakeRequest(300, local_->vocab(), 93, 900);
  request.sampling.stop_token_ids.clear();
  request.choices = 2;
  WorkerProcess* victim = nullptr;
  const TestAnswer answer = AskOne(cluster, request, [&](const TestAnswer& so_far) {
    if (victim != nullptr || so_far.tokens[0].size() < 100) return;
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

INSTANTIATE_TEST_SUITE_P(Signals, MtpFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
