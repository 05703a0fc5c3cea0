// A worker that dies or leaves in the middle of an answer costs no token; any router will do, and a
// new one knows what the workers have.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/grammar_oracle.h"
#include "tests/support/environment.h"
#include "tests/support/sanitizers.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr int kAnswerTokens = 600;
// Between two messages of an answer, a failover included.
#ifdef PENSTOCK_TEST_SANITIZED
constexpr seconds kPauseMax{20};
#else
constexpr seconds kPauseMax{2};
#endif

// PENSTOCK_FAILOVERS=100 for the whole count; a few in every run of the tests.
int Failovers() {
  const char* const asked = std::getenv("PENSTOCK_FAILOVERS");
  return asked == nullptr ? 4 : std::max(1, std::atoi(asked));
}

// Even ones greedy, odd ones sampled with penalties; every other two with four choices, and two of
// four with a grammar whose answers are long.
TestRequest RequestOf(int number, std::mt19937& random, const GrammarOracle& grammars) {
  TestRequest request = MakeRequests(2, 200, 2000, 7000 + static_cast<uint32_t>(number))[1];
  if (number % 2 == 0) request.sampling.temperature = 0;
  request.choices = number % 4 < 2 ? 1 : 4;
  if (number % 2 == 1) {
    request.sampling.temperature = 0.8f;
    request.sampling.frequency_penalty = 0.5f;
    request.sampling.presence_penalty = 0.3f;
    request.sampling.repetition_penalty = 1.2f;
  }
  request.tokens_max = kAnswerTokens;
  request.prompt.resize(1 + random() % request.prompt.size());
  if (number % 4 == 1 || number % 4 == 2) grammars.Constrain(request, ManyNumbers(250));
  return request;
}

TestAnswer AskWithin(v1::Inference::Stub& client, const TestRequest& request,
                     const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  return Ask(client, ToProto(request), context, on_tokens);
}

// A cluster, and what its answers should be.
class Answers {
 public:
  explicit Answers(const Cluster::Options& options) : cluster_(options) {}

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

  // Until the router places on that many decode workers.
  void AwaitDecodeWorkers(size_t count) {
    TestRequest request{.prompt = {1, 2, 3}, .sampling = {}, .tokens_max = 1};
    v1::GenerateRequest proto = ToProto(request);
    proto.mutable_output()->set_explain(true);
    ASSERT_TRUE(WaitUntil(
        [&] {
          grpc::ClientContext context;
          std::set<std::string> workers;
          const TestAnswer answer = Ask(cluster_.client(), proto, context);
          for (const v1::ScoredPair& pair : answer.explanation.candidates()) {
            workers.insert(pair.decode_worker());
          }
          return workers.size() == count;
        },
        seconds(30)))
        << cluster_.Logs();
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

  uint64_t PrefillSteps() {
    const auto state = cluster_.prefill().front().State();
    EXPECT_TRUE(state.has_value());
    return state.has_value() ? state->steps() : 0;
  }

  LocalGenerator local_{ModelFolder()};
  const GrammarOracle grammars_{ModelFolder(), local_.vocab()};
  Cluster cluster_;
};

class FailoverTest : public Answers, public testing::TestWithParam<int> {
 protected:
  FailoverTest() : Answers({.prefill = 1, .decode = 2}) {}
};

// The parameter is the signal. With SIGTERM what runs moves to the other decode worker, and no
// prefill worker computes anything again.
TEST_P(FailoverTest, TheAnswerIsTheUndisturbedOne) {
  std::mt19937 random(GetParam());
  uint32_t migrations = 0;
  for (int i = 0; i < Failovers(); ++i) {
    SCOPED_TRACE(testing::Message() << "generation " << i);
    ASSERT_NO_FATAL_FAILURE(AwaitDecodeWorkers(2));
    const TestRequest request = RequestOf(i, random, grammars_);
    const size_t at = 1 + random() % (kAnswerTokens / 3);
    WorkerProcess* victim = nullptr;
    uint64_t prefill_steps = 0;
    std::optional<std::chrono::steady_clock::time_point> last;
    std::chrono::steady_clock::duration pause{};
    const TestAnswer answer = AskWithin(cluster_.client(), request, [&](const TestAnswer& so_far) {
      const auto now = std::chrono::steady_clock::now();
      pause = std::max(pause, now - last.value_or(now));
      last = now;
      if (victim != nullptr || so_far.tokens[0].size() < at) return;
      victim = &BusyDecode();
      prefill_steps = PrefillSteps();
      victim->process.Signal(GetParam());
      last = std::chrono::steady_clock::now();  // without the time of these calls
    });
    ExpectUndisturbed(request, answer);
    ASSERT_NE(victim, nullptr);
    EXPECT_LT(pause, kPauseMax);
    ASSERT_TRUE(victim->process.Wait(seconds(30)).has_value());
    migrations += answer.timing.migrations();
    if (GetParam() == SIGTERM) {
      EXPECT_EQ(answer.timing.migrations(), static_cast<uint32_t>(request.choices))
          << cluster_.Logs();
      EXPECT_EQ(answer.usage.recomputed_tokens(), 0u);
      EXPECT_EQ(PrefillSteps(), prefill_steps);
    }
    cluster_.Restart(*victim);
    ASSERT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
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

// Nothing was shown of a beam search before its end: another worker starts it again, with the same
// answers. With SIGTERM it may also end where it is. Where the machine is busy, the search may end
// before the signal comes: then it is asked for again.
TEST_P(FailoverTest, ABeamSearchGivesTheUndisturbedAnswers) {
  ASSERT_NO_FATAL_FAILURE(AwaitDecodeWorkers(2));
  TestRequest request = MakeRequests(2, 60, 2000, 97)[1];
  request.tokens_max = 120;
  request.beams = 4;
  request.choices = 2;
  const BeamRules rules{.width = 4, .answers = 2, .tokens_max = request.tokens_max};
  const auto expected = local_.Search(request.prompt, request.sampling, rules);
  bool disturbed = false;
  uint32_t migrations = 0;
  for (int turn = 0; turn < 10 && !disturbed; ++turn) {
    WorkerProcess* victim = nullptr;
    std::atomic<bool> ended{false};
    std::thread killer([&] {
      EXPECT_TRUE(WaitUntil(
          [&] {
            for (WorkerProcess& worker : cluster_.decode()) {
              const auto state = worker.State();
              if (state.has_value() && state->running() == 4) victim = &worker;
            }
            return victim != nullptr || ended;
          },
          seconds(90)));
      if (victim != nullptr) victim->process.Signal(GetParam());
    });
    const TestAnswer answer = AskWithin(cluster_.client(), request, {});
    ended = true;
    killer.join();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster_.Logs();
    EXPECT_EQ(answer.tokens, expected);
    if (victim == nullptr) continue;
    EXPECT_TRUE(victim->process.Wait(seconds(30)).has_value());
    migrations = answer.timing.migrations();
    disturbed = GetParam() == SIGTERM || migrations > 0;
    if (!disturbed) cluster_.Restart(*victim);
  }
  EXPECT_TRUE(disturbed) << cluster_.Logs();
  if (GetParam() == SIGKILL) {
    EXPECT_EQ(migrations, 1u);
  }
}

class NoPrefillTest : public Answers, public testing::Test {
 protected:
  NoPrefillTest() : Answers({.prefill = 1, .decode = 2}) {}
};

// A decode worker computes whole prompts, and after its death another the prompt with the answer.
TEST_F(NoPrefillTest, DecodeWorkersServeAlone) {
  ASSERT_NO_FATAL_FAILURE(AwaitDecodeWorkers(2));
  cluster_.prefill().front().process.Signal(SIGKILL);
  ASSERT_TRUE(cluster_.prefill().front().process.Wait(seconds(30)).has_value());
  std::mt19937 random(1);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(testing::Message() << "generation " << i);
    const TestRequest request = RequestOf(i, random, grammars_);
    ExpectUndisturbed(request, AskWithin(cluster_.client(), request, [](const TestAnswer&) {}));
  }
  const TestRequest request = RequestOf(4, random, grammars_);
  WorkerProcess* victim = nullptr;
  const TestAnswer answer = AskWithin(cluster_.client(), request, [&](const TestAnswer& so_far) {
    if (victim != nullptr || so_far.tokens[0].size() < 5) return;
    victim = &BusyDecode();
    victim->process.Signal(SIGKILL);
  });
  ExpectUndisturbed(request, answer);
  ASSERT_NE(victim, nullptr);
  EXPECT_GT(answer.timing.migrations(), 0u);
  EXPECT_GT(answer.usage.recomputed_tokens(), 0u);
}

// Four choices, which only the second decode worker has room for; the first one takes one at a
// time.
class MoveFaultTest : public Answers, public testing::Test {
 protected:
  explicit MoveFaultTest(Cluster::Options options) : Answers(options) {}

  static Cluster::Options OptionsOf(const std::string& target_fault,
                                    const std::string& source_fault) {
    return {.prefill = 1,
            .decode = 2,
            .decode_flags = {"--fault=" + source_fault},
            .first_decode_flags = {"--kv_memory=4MiB", "--fault=" + target_fault}};
  }

  WorkerProcess& target() { return cluster_.decode()[0]; }
  WorkerProcess& source() { return cluster_.decode()[1]; }

  // Drains the source in the middle of the answer.
  TestAnswer AskAndDrain(const std::function<void()>& on_tokens = nullptr) {
    AwaitDecodeWorkers(2);
    TestRequest request = MakeRequests(2, 40, 2000, 77)[1];
    request.choices = 4;
    request.tokens_max = kAnswerTokens;
    bool drains = false;
    TestAnswer answer = AskWithin(cluster_.client(), request, [&](const TestAnswer& so_far) {
      if (drains) return on_tokens ? on_tokens() : void();
      if (so_far.tokens[0].size() < 20) return;
      drains = true;
      source().process.Signal(SIGTERM);
    });
    ExpectUndisturbed(request, answer);
    EXPECT_TRUE(drains);
    return answer;
  }
};

class TargetKilledTest : public MoveFaultTest {
 protected:
  TargetKilledTest() : MoveFaultTest(OptionsOf("landed:kill", "")) {}
};

// The choice goes on where it was; when another target is there, it may move to that.
TEST_F(TargetKilledTest, TheSourceGoesOn) {
  bool restarted = false;
  const TestAnswer answer = AskAndDrain([&] {
    if (restarted || target().process.running()) return;
    restarted = true;
    target().command.push_back("--fault=");
    cluster_.Restart(target());
  });
  EXPECT_TRUE(restarted || !target().process.running()) << "nothing moved" << cluster_.Logs();
  EXPECT_TRUE(source().process.Wait(seconds(30)).has_value());
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
}

class SourceKilledTest : public MoveFaultTest {
 protected:
  SourceKilledTest() : MoveFaultTest(OptionsOf("", "move-streaming:kill")) {}
};

// The source's KV is computed again.
TEST_F(SourceKilledTest, TheAnswerIsComputedAgain) {
  const TestAnswer answer = AskAndDrain();
  EXPECT_GT(answer.usage.recomputed_tokens(), 0u) << cluster_.Logs();
  EXPECT_TRUE(source().process.Wait(seconds(30)).has_value());
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
}

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

  // The cheapest pair with this prefill worker; an empty one if none was scored.
  static v1::ScoredPair PairOf(const TestAnswer& answer, const std::string& worker) {
    for (const v1::ScoredPair& pair : answer.explanation.candidates()) {
      if (pair.prefill_worker() == worker) return pair;
    }
    return {};
  }

  static bool KnowsOf(const TestAnswer& answer, const std::string& worker) {
    return PairOf(answer, worker).cached_tokens() > 300;
  }

  // Prompts are served from the first one on. Where one goes is chance until the events of its home
  // have come, and from then on it is its home, unless the prompt would wait there.
  void ExpectFindsPrefixes(v1::Inference::Stub& client) {
    int found = 0;
    for (int i = 0; i < kPrompts; ++i) {
      const TestAnswer answer = AskOf(client, requests_[i]);
      if (!KnowsOf(answer, homes_[i])) {
        const auto is_known = [&] { return KnowsOf(AskOf(client, requests_[i]), homes_[i]); };
        ASSERT_TRUE(WaitUntil(is_known, seconds(30))) << homes_[i] << '\n' << cluster_.Logs();
        continue;
      }
      if (PairOf(answer, homes_[i]).queue_ms() > 0) continue;
      ++found;
      EXPECT_EQ(answer.timing.prefill_worker(), homes_[i]) << answer.explanation.DebugString();
      EXPECT_GT(answer.usage.cached_tokens(), 300u);
    }
    EXPECT_GE(found, kPrompts / 2) << cluster_.Logs();
  }

  LocalGenerator local_{ModelFolder()};
  // The decode worker has every prompt, and would compute the few tokens left of it itself.
  Cluster cluster_{{.prefill = 3, .decode = 1, .decode_flags = {"--local_prefill_max_tokens=0"}}};
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

class RouterKilledTest : public Answers, public testing::Test {
 protected:
  RouterKilledTest() : Answers({}) {}
};

// The client loses its connection; the workers have nothing left of its request.
TEST_F(RouterKilledTest, ItsRequestsEndAtTheWorkersAndAnotherRouterServes) {
  std::mt19937 random(3);
  const TestRequest request = RequestOf(1, random, grammars_);
  bool killed = false;
  const TestAnswer broken = AskWithin(cluster_.client(), request, [&](const TestAnswer& so_far) {
    if (killed || so_far.tokens[0].size() < 20) return;
    killed = true;
    cluster_.KillRouter();
  });
  EXPECT_TRUE(killed);
  EXPECT_EQ(broken.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
  cluster_.ReplaceRouter();
  ExpectUndisturbed(request, AskWithin(cluster_.client(), request));
}

}  // namespace
}  // namespace penstock
