// Reads of a prefix from another worker, as the router plans them: the same tokens, and the router
// explains its choice. peer_test.cc has the reads themselves.

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/peer_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

class PlannedPeerTest : public PeerTest {
 protected:
  static TestAnswer AskRouter(Cluster& cluster, const TestRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    v1::GenerateRequest proto = ToProto(request);
    proto.mutable_output()->set_explain(true);
    return Ask(cluster.client(), proto, context);
  }
  void ExpectAnswer(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }
  // Another process in its place, without a cache; serves when this returns.
  void Renew(Cluster& cluster, WorkerProcess& worker) {
    worker.process.Signal(SIGKILL);
    ASSERT_TRUE(worker.process.Wait(seconds(30)).has_value());
    cluster.Restart(worker);
    const TestRequest other = Prompt(20, 99);
    ASSERT_TRUE(WaitUntil([&] { return AskRouter(cluster, other).status.ok(); }, seconds(30)));
  }
};

// Decode workers with it do not serve alone while the prefill worker is away.
constexpr char kNeedsPrefill[] = "--local_prefill_max_tokens=0";

// The decode worker has what it had: the router knows, and explains what it makes of it.
TEST_F(PlannedPeerTest, APrefillWorkerThatIsStartedAnewReadsFromTheDecodeWorker) {
  Cluster cluster({.decode_flags = {kNeedsPrefill}, .router_flags = {"--peer_patience_ms=60000"}});
  const TestRequest request = Prompt(600, 40);
  ExpectAnswer(cluster, request, AskRouter(cluster, request));
  Renew(cluster, cluster.prefill()[0]);
  const TestAnswer answer = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, answer);
  EXPECT_EQ(answer.usage.cached_tokens(), 592u) << cluster.Logs();
  const v1::ScoredPair& chosen = answer.explanation.candidates(0);
  EXPECT_EQ(chosen.fetched_tokens(), 592u);
  EXPECT_EQ(chosen.source_worker(), cluster.decode()[0].State()->worker_id());
  EXPECT_GT(chosen.fetch_ms(), 0);
  // Once it is there, nothing is read again.
  const TestAnswer again = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, again);
  EXPECT_EQ(again.usage.cached_tokens(), 592u);
  EXPECT_EQ(again.explanation.candidates(0).fetched_tokens(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST_F(PlannedPeerTest, WhereThatIsTurnedOffThePromptIsComputed) {
  Cluster cluster({.decode_flags = {kNeedsPrefill}, .router_flags = {"--peer_reads=off"}});
  const TestRequest request = Prompt(600, 41);
  ExpectAnswer(cluster, request, AskRouter(cluster, request));
  Renew(cluster, cluster.prefill()[0]);
  const TestAnswer answer = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, answer);
  EXPECT_EQ(answer.usage.cached_tokens(), 0u);
}

// The next turn: the prompt was computed by the prefill worker, its answer by the decode worker,
// which tells the router of it a moment after the client has it.
TEST_F(PlannedPeerTest, TheNextTurnReadsTheAnswerOfTheLast) {
  Cluster cluster({.router_flags = {"--peer_patience_ms=60000"}});
  bool read = false;
  for (uint32_t conversation = 0; conversation < 10 && !read; ++conversation) {
    TestRequest request = Prompt(64, 42 + conversation);
    request.tokens_max = 500;
    const TestAnswer first = AskRouter(cluster, request);
    ExpectAnswer(cluster, request, first);
    ASSERT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
    TestRequest next = request;
    next.prompt.insert(next.prompt.end(), first.tokens[0].begin(), first.tokens[0].end());
    next.prompt.insert(next.prompt.end(), {5, 6, 7, 8, 9});
    next.tokens_max = 8;
    const TestAnswer second = AskRouter(cluster, next);
    ExpectAnswer(cluster, next, second);
    read = second.usage.cached_tokens() == (64 + first.tokens[0].size() - 1) / 16 * 16;
  }
  EXPECT_TRUE(read);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
