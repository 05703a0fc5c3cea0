// Speculation with the model's own layer for multi-token prediction (MTP): whatever it guesses,
// every token is that of one process without it. The layer's keys and values are one more layer of
// the pages, so they go where those go: over the wire, into caches, to other workers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/grammar_oracle.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/e2e/models/model_fixture.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr char kMtp[] = "--speculation=mtp";
constexpr uint64_t kTokenBytes = (7 + 1) * (64 + 16) * 2;

class MtpTest : public ModelTest {
 protected:
  MtpTest() {
    WriteMtpModel(folder());
    Load();
  }
};

TEST_F(MtpTest, SomeGuessesAreRight) {
  Cluster cluster(
      {.model = folder(), .prefill_flags = {kMtp}, .decode_flags = {kMtp, "--random_drafts"}});
  TestRequest request = MakeRequest(60, local().vocab(), 90, 80);
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
      {.model = folder(),
       .prefill = 2,
       .decode = 2,
       .prefill_flags = {"--random_chunks", kMtp},
       .decode_flags = {kMtp, "--max_draft_tokens=4", "--random_drafts"},
       .first_decode_flags = {"--kv_memory=1MiB", "--dram_memory=32MiB", "--max_batch=5"}});
  std::vector<TestRequest> requests = MakeRequests(40, 400, local().vocab(), 91);
  for (size_t r = 0; r < requests.size(); ++r) {
    requests[r].tokens_max = 60;
    requests[r].choices = 1 + static_cast<int>(r % 5 == 0);
    if (r % 7 == 1) requests[r].sampling.logit_bias = {{7, 4.0f}, {9, -3.0f}};
  }
  const GrammarOracle grammars(folder(), local().vocab());
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
  Cluster cluster({.model = folder(), .prefill_flags = {kMtp}, .decode_flags = {kMtp}});
  const TestRequest request = MakeRequest(512, local().vocab(), 92, 8);
  const TestAnswer answer = AskOne(cluster, request);
  Expect(cluster, request, answer);
  EXPECT_EQ(answer.timing.kv_bytes_moved(), 512 * kTokenBytes);
}

TEST_F(MtpTest, SaysWhatStandsInTheWay) {
  const std::string draft = "--draft_model=" + folder();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--model=" + ModelFolder()}, "num_nextn_predict_layers is 0 or absent"},
      {{"--model=" + folder(), draft}, "only one of them can guess"},
  };
  for (const auto& [flags, error] : cases) {
    std::vector<std::string> command = {"penstock-decode", "--listen=127.0.0.1:0", kMtp};
    command.insert(command.end(), flags.begin(), flags.end());
    Process worker(command, folder() + "/log");
    EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0) << error;
    EXPECT_NE(worker.Log().find(error), std::string::npos) << worker.Log();
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequences over.
class MtpFailoverTest : public MtpTest, public testing::WithParamInterface<int> {};

TEST_P(MtpFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.model = folder(),
                   .decode = 2,
                   .prefill_flags = {"--random_chunks", kMtp},
                   .decode_flags = {kMtp, "--random_drafts"}});
  CheckDisturbed(cluster, LongRequest(300, 900, 93), GetParam(), 100);
}

INSTANTIATE_TEST_SUITE_P(Signals, MtpFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

}  // namespace
}  // namespace penstock
