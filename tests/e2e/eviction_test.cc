// Prompts of which a part of the KV is dropped at the end of prefill, because a request asked for
// it: the answer is what the same eviction gives in one process, whatever happens on the way; exact
// requests hear nothing of it, and who may not ask is told.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kvstore/names/kv_policy.h"
#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/policy_requests.h"
#include "tests/http/http_client.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kTokenBytes = 5 * 2 * 64 * 2 * 2;  // layers, KV heads, head, K and V, bf16
const std::vector<std::string> kAllow = {"--kv_eviction=all"};

std::vector<std::string> With(std::vector<std::string> flags) {
  flags.insert(flags.end(), kAllow.begin(), kAllow.end());
  return flags;
}

// What one process answers, with the eviction where it changes something.
std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  const auto tokens = static_cast<uint32_t>(request.prompt.size());
  if (EvictedTokens(policy, tokens) == 0) {
    return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
  }
  return local.GenerateEvicted(request.prompt, request.sampling, request.tokens_max, policy,
                               choice);
}

// Sampled, so that what is lost shows, and long enough to leave the block behind the kept tokens.
TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed) {
  TestRequest request = MakeRequest(tokens, vocab, seed, 40);
  request.sampling.stop_token_ids.clear();
  return request;
}

TEST(EvictionTest, EveryMethodGivesWhatItGivesInOneProcess) {
  LocalGenerator local(ModelFolder());
  const uint32_t vocab = local.vocab();
  Cluster cluster(
      {.prefill_flags = With({"--random_chunks", "--wire_codec=raw"}), .decode_flags = kAllow});
  uint32_t seed = 140, differ = 0;
  uint64_t evicted = 0;
  for (const std::string& name : KvEvictionNames()) {
    ++seed;
    const uint32_t keep = 64 + seed % 50;  // not always whole blocks
    const std::string policy = fmt::format("{}:{}", name, keep);
    const TestRequest request = Prompt(480 + static_cast<int>(seed % 32), vocab, seed);
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
    EXPECT_EQ(answer.usage.evicted_tokens(), request.prompt.size() - keep);
    EXPECT_EQ(answer.timing.kv_bytes_moved(), (keep + 15) / 16 * 16 * kTokenBytes) << policy;
    evicted += answer.usage.evicted_tokens();
    differ += answer.tokens[0] != Expected(local, request, "") ? 1 : 0;
  }
  EXPECT_GT(differ, 3u) << "prompts that tell an eviction from none are needed";
  const auto state = cluster.prefill().front().State();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->evicted_tokens(), evicted);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST(EvictionTest, QuantisedPagesAreEvictedToo) {
  LocalGenerator local(ModelFolder(), "k8v4");
  Cluster cluster({.prefill_flags = With({"--random_chunks", "--kv_format=k8v4"}),
                   .decode_flags = With({"--kv_format=k8v4"})});
  const TestRequest request = Prompt(300, local.vocab(), 160);
  for (const char* policy : {"snapkv:70", "keydiff:64"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
  }
}

// The same prompts in turn under several policies, batched with each other, with choices, chunks at
// random, guesses checked, and pools so small that sessions are preempted.
TEST(EvictionTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 40;
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks", "--kv_memory=4MiB"}),
                   .decode_flags = With({"--kv_memory=1800KiB", "--speculation=ngram"})});
  const std::vector<std::string> policies = {"snapkv:64", "", "streaming:100", "tova:80",
                                             "snapkv:4096"};
  const std::vector<TestRequest> prompts = MakeRequests(10, 300, local.vocab(), 170);
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    TestRequest request = prompts[i % prompts.size()];
    request.choices = i % 3 == 0 ? 2 : 1;
    requests.push_back(request);
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  for (int i = 0; i < kRequests; ++i) {
    const std::string& policy = policies[i % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    for (int choice = 0; choice < requests[i].choices; ++choice) {
      EXPECT_EQ(answers[i].tokens[choice],
                Expected(local, requests[i], policy, static_cast<uint32_t>(choice)))
          << "request " << i << " under " << policy;
    }
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST(EvictionTest, ExactRequestsFindNothingOfIt) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--wire_codec=raw"}), .decode_flags = kAllow});
  const TestRequest request = Prompt(600, local.vocab(), 181);
  const auto exact = Expected(local, request, "");
  const auto evicted = Expected(local, request, "snapkv:96");
  ASSERT_NE(exact, evicted);
  // Policy, answer, KV that moves. What was evicted is in no decode worker's cache, so it comes
  // again; the prefill worker's own blocks are exact, and every request finds them.
  const struct {
    const char* policy;
    const std::vector<uint32_t>& answer;
    uint64_t tokens_moved;
  } turns[] = {{"snapkv:96", evicted, 96},
               {"", exact, 608},
               {"snapkv:96", evicted, 96},
               {"exact", exact, 16},
               {"snapkv:600", exact, 608}};
  for (const auto& turn : turns) {
    const TestAnswer answer = AskFor(cluster, request, turn.policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], turn.answer) << turn.policy;
    EXPECT_EQ(answer.timing.kv_bytes_moved(), turn.tokens_moved * kTokenBytes) << turn.policy;
  }
  // The window of queries that SnapKV observes is computed again.
  EXPECT_EQ(AskFor(cluster, request, "snapkv:96").usage.cached_tokens(), 560u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, and
// the answer so far is computed again behind the same eviction; or it hands its sequences over.
class EvictedFailoverTest : public testing::TestWithParam<int> {};

TEST_P(EvictedFailoverTest, TheAnswerIsTheUndisturbedOne) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks"}),
                   .decode_flags = kAllow});
  TestRequest request = Prompt(250, local.vocab(), 190);
  request.tokens_max = 400;
  request.choices = 2;
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 50},
      [&](const auto& on_tokens) { return AskFor(cluster, request, "snapkv:72", on_tokens); });
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  for (uint32_t choice = 0; choice < 2; ++choice) {
    EXPECT_EQ(answer.tokens[choice], Expected(local, request, "snapkv:72", choice));
  }
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, EvictedFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

TEST(EvictionTest, WorkersAreTheOuterBound) {
  Cluster cluster(
      {.prefill_flags = {"--kv_eviction=snapkv,tova"}, .decode_flags = {"--kv_eviction=snapkv"}});
  const TestRequest request = MakeRequest(100, 256, 53, 4);
  for (const char* policy : {"tova:64", "keydiff:64"}) {
    const TestAnswer refused = AskFor(cluster, request, policy);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << policy;
    EXPECT_THAT(refused.status.error_message(),
                HasSubstr(fmt::format(
                    "kv_policy is {}; no pair of workers supports it; supported: snapkv", policy)));
  }
  for (const char* policy : {"snapkv:63", "snapkv", "snapkv:", "snapkv:0x40", "snapkv:064",
                             "snapkv:1048577", "pyramidkv:64"}) {
    const TestAnswer unknown = AskFor(cluster, request, policy);
    EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << policy;
    EXPECT_THAT(unknown.status.error_message(), HasSubstr("TOKENS 64 to 1048576"));
  }
  EXPECT_TRUE(AskFor(cluster, request, "snapkv:64").status.ok());
  v1::GenerateRequest scored = ToProto(request, "snapkv:64");
  scored.mutable_output()->set_echo(true);
  scored.mutable_output()->set_top_logprobs(1);
  grpc::ClientContext context;
  EXPECT_THAT(Ask(cluster.client(), scored, context).status.error_message(),
              HasSubstr("cannot be combined with log-probabilities of the prompt"));
}

// Every method keeps spans at the beginning, in the middle and at the end of the prompt.
TEST(EvictionTest, EveryMethodKeepsSpansAsInOneProcess) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--random_chunks"}), .decode_flags = kAllow});
  uint32_t seed = 190, differ = 0;
  for (const std::string& name : KvEvictionNames()) {
    const TestRequest request = Prompt(400, local.vocab(), ++seed);
    const std::string policy = name + ":80";
    const TestAnswer answer = AskFor(cluster, request, policy + "@2-9,150-168,390-400");
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy + "@2-9,150-168,390-400")) << name;
    EXPECT_EQ(answer.usage.evicted_tokens(), 320u);
    differ += answer.tokens[0] != Expected(local, request, policy) ? 1 : 0;
    const TestAnswer exact = AskFor(cluster, request, "");
    EXPECT_EQ(exact.tokens[0], Expected(local, request, "")) << "no cache has what is left";
    const TestAnswer other = AskFor(cluster, request, policy + "@150-170");
    EXPECT_EQ(other.tokens[0], Expected(local, request, policy + "@150-170")) << name;
  }
  EXPECT_GT(differ, 3u) << "prompts that tell spans from none are needed";
}

// The bundled model's answer to a question about the beginning of its prompt.
std::string AskForPassKey(Cluster& cluster, const std::string& policy, bool marks,
                          uint32_t* evicted) {
  const std::string mark = marks ? "<<keep>>" : "";
  std::ifstream file(SourceFolder() + "/models/text/held_out.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  nlohmann::json body = {{"prompt", text.substr(0, 60) + mark + " The pass key is " + mark + mark +
                                        "48213. Remember it." + mark + text.substr(60, 1400) +
                                        " What is the pass key? The pass key is "},
                         {"kv_policy", policy},
                         {"temperature", 0},
                         {"max_tokens", 5}};
  if (marks) body["keep_marker"] = mark;
  const HttpReply reply = Ask(cluster.http_endpoint(), "/v1/completions", body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body;
  const auto json = nlohmann::json::parse(reply.body);
  *evicted = json["usage"]["prompt_tokens_details"].value("evicted_tokens", 0u);
  return json["choices"][0]["text"];
}

TEST(EvictionTest, APassKeyInASpanIsFoundAndOtherwiseIsNot) {
  Cluster cluster({.prefill_flags = kAllow, .decode_flags = kAllow});
  uint32_t evicted = 0;
  EXPECT_EQ(AskForPassKey(cluster, "exact", false, &evicted), "48213");
  EXPECT_EQ(evicted, 0u);
  EXPECT_NE(AskForPassKey(cluster, "streaming:128", false, &evicted), "48213");
  EXPECT_GT(evicted, 200u);
  EXPECT_EQ(AskForPassKey(cluster, "streaming:128", true, &evicted), "48213");
  EXPECT_GT(evicted, 200u);
}

TEST(EvictionTest, SpansThatDoNotFitAreNamed) {
  Cluster cluster({.prefill_flags = kAllow, .decode_flags = kAllow});
  const TestRequest request = MakeRequest(100, 256, 53, 4);
  const auto error = [&](const std::string& policy, const std::vector<uint32_t>& spans) {
    v1::GenerateRequest asked = ToProto(request, "");
    asked.set_kv_policy(policy);
    asked.mutable_keep_spans()->Assign(spans.begin(), spans.end());
    grpc::ClientContext context;
    const TestAnswer refused = Ask(cluster.client(), asked, context);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return refused.status.error_message();
  };
  EXPECT_THAT(error("streaming:64", {10, 39}),
              HasSubstr("keep_spans marks 29 tokens, and kv_policy streaming:64 keeps 64, of which "
                        "36 must be left for the first and the last tokens: at most 28"));
  EXPECT_THAT(error("exact", {10, 20}),
              HasSubstr("keep_spans is set, and kv_policy is exact; it needs an eviction"));
  EXPECT_THAT(error("streaming:64@10-20", {10, 20}), HasSubstr("has spans behind its @"));
}

}  // namespace
}  // namespace penstock
