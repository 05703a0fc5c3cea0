// A worker that dies or leaves in the middle of an answer costs no token; any router will do, and a
// new one knows what the workers have.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>

#include "tests/e2e/cluster.h"
#include "tests/e2e/local_generator.h"
#include "tests/e2e/requests.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr int kAnswerTokens = 600;

// PENSTOCK_FAILOVERS=100 for the whole count; a few in every run of the tests.
int Failovers() {
  const char* const asked = std::getenv("PENSTOCK_FAILOVERS");
  return asked == nullptr ? 4 : std::max(1, std::atoi(asked));
}

// Even ones greedy; every other two with four choices.
TestRequest RequestOf(int number, std::mt19937& random) {
  TestRequest request = MakeRequests(2, 200, 2000, 7000 + static_cast<uint32_t>(number))[1];
  if (number % 2 == 0) request.sampling.temperature = 0;
  request.choices = number % 4 < 2 ? 1 : 4;
  request.tokens_max = kAnswerTokens;
  request.prompt.resize(1 + random() % request.prompt.size());
  return request;
}

TestAnswer AskWithin(v1::Inference::Stub& client, const TestRequest& request,
                     const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  return Ask(client, ToProto(request), context, on_tokens);
}

class FailoverTest : public testing::TestWithParam<int> {
 protected:
  void ExpectUndisturbed(const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster_.Logs();
    for (int choice = 0; choice < request.choices; ++choice) {
      EXPECT_EQ(answer.tokens[choice],
                local_.Generate(request.prompt, request.sampling, request.tokens_max,
                                static_cast<uint32_t>(choice)))
          << "choice " << choice;
    }
  }

  // The decode worker that has the only request there is.
  WorkerProcess& BusyDecode() {
    for (WorkerProcess& worker : cluster_.decode()) {
      const auto state = worker.State();
      if (state.has_value() && state->running() > 0) return worker;
    }
    ADD_FAILURE() << "nobody decodes any more";
    return cluster_.decode().front();
  }

  LocalGenerator local_{ModelFolder()};
  Cluster cluster_{{.prefill = 1, .decode = 2}};
};

// The parameter is the signal. SIGTERM lets a worker finish what it has; no token is computed
// twice.
TEST_P(FailoverTest, TheAnswerIsTheUndisturbedOne) {
  std::mt19937 random(GetParam());
  uint32_t migrations = 0;
  for (int i = 0; i < Failovers(); ++i) {
    SCOPED_TRACE(testing::Message() << "generation " << i);
    const TestRequest request = RequestOf(i, random);
    const size_t at = 1 + random() % (kAnswerTokens / 3);
    WorkerProcess* victim = nullptr;
    const TestAnswer answer = AskWithin(cluster_.client(), request, [&](const TestAnswer& so_far) {
      if (victim != nullptr || so_far.tokens[0].size() < at) return;
      victim = &BusyDecode();
      victim->process.Signal(GetParam());
    });
    ExpectUndisturbed(request, answer);
    ASSERT_NE(victim, nullptr);
    ASSERT_TRUE(victim->process.Wait(seconds(20)).has_value());
    migrations += answer.timing.migrations();
    cluster_.Restart(*victim);
    ASSERT_TRUE(cluster_.AllBlocksFree(seconds(5))) << cluster_.Logs();
  }
  if (GetParam() == SIGKILL) {
    EXPECT_GE(migrations, static_cast<uint32_t>(Failovers())) << "somebody was killed too late";
  }
  std::printf("%d answers, %u migrations\n", Failovers(), migrations);
}

INSTANTIATE_TEST_SUITE_P(Signals, FailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& instance) {
                           return instance.param == SIGKILL ? "Kill" : "Term";
                         });

// Routers that know nothing of each other, in front of the same workers.
class ManyRoutersTest : public testing::Test {
 protected:
  static constexpr int kPrompts = 24;

  ManyRoutersTest() {
    for (int i = 0; i < kPrompts; ++i) {
      TestRequest request = MakeRequests(2, 400, 2000, 900 + static_cast<uint32_t>(i))[1];
      request.tokens_max = 4;
      homes_.push_back(AskOf(cluster_.client(), request).timing.prefill_worker());
      requests_.push_back(std::move(request));
    }
  }

  TestAnswer AskOf(v1::Inference::Stub& client, const TestRequest& request) {
    v1::GenerateRequest proto = ToProto(request);
    proto.mutable_output()->set_explain(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    TestAnswer answer = Ask(client, proto, context);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster_.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
    return answer;
  }

  static bool KnowsOf(const TestAnswer& answer, const std::string& worker) {
    for (const v1::ScoredPair& pair : answer.explanation.candidates()) {
      if (pair.prefill_worker() == worker && pair.cached_tokens() > 0) return true;
    }
    return false;
  }

  // Each prompt once. Served from the first on; where they go is chance until the workers' events
  // have come, and from then on where the prefix is.
  void ExpectFindsPrefixes(v1::Inference::Stub& client) {
    int known_from = 0;
    while (known_from < kPrompts &&
           !KnowsOf(AskOf(client, requests_[known_from]), homes_[known_from])) {
      ++known_from;
    }
    EXPECT_LE(known_from, kPrompts / 2) << cluster_.Logs();
    for (int i = known_from + 1; i < kPrompts; ++i) {
      const TestAnswer answer = AskOf(client, requests_[i]);
      EXPECT_EQ(answer.timing.prefill_worker(), homes_[i]);
      EXPECT_GT(answer.usage.cached_tokens(), 300u);
    }
  }

  LocalGenerator local_{ModelFolder()};
  Cluster cluster_{{.prefill = 3, .decode = 1}};
  std::vector<TestRequest> requests_;
  std::vector<std::string> homes_;  // who computed them
};

TEST_F(ManyRoutersTest, AnotherOneFindsWhatTheWorkersHave) {
  ExpectFindsPrefixes(*cluster_.StartAnotherRouter().client);
}

TEST_F(ManyRoutersTest, ARouterThatWasReplacedFindsIt) {
  cluster_.ReplaceRouter();
  ExpectFindsPrefixes(cluster_.client());
}

}  // namespace
}  // namespace penstock
