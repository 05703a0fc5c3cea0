// Answers whose tokens attend to pages that they select, because a request asked for it: they are
// what the same selection gives in one process, whatever happens on the way; the prompt's KV is
// exact for everybody, the answer's is in no cache, and who may not ask is told.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "kvstore/names/kv_policy.h"
#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kTokenBytes = 5 * 2 * 64 * 2 * 2;  // layers, KV heads, head, K and V, bf16
const std::vector<std::string> kAllow = {"--kv_selection=all"};

std::vector<std::string> With(std::vector<std::string> flags) {
  flags.insert(flags.end(), kAllow.begin(), kAllow.end());
  return flags;
}

std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  local.Select(policy);
  return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
}

// All answers of one process: of the choices, or of a search.
std::vector<std::vector<uint32_t>> ExpectedAll(LocalGenerator& local, const TestRequest& request,
                                               const std::string& policy) {
  if (request.beams > 0) {
    local.Select(policy);
    return local.Search(
        request.prompt, request.sampling,
        {.width = request.beams, .answers = request.choices, .tokens_max = request.tokens_max});
  }
  std::vector<std::vector<uint32_t>> answers;
  for (int choice = 0; choice < request.choices; ++choice) {
    answers.push_back(Expected(local, request, policy, static_cast<uint32_t>(choice)));
  }
  return answers;
}

// Sampled, so that what is not attended to shows, and longer than a block.
TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed) {
  TestRequest request = MakeRequest(tokens, vocab, seed, 40);
  request.sampling.stop_token_ids.clear();
  return request;
}

TEST(SelectionTest, AnswersSelectAsInOneProcess) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--random_chunks"}), .decode_flags = kAllow});
  int differ = 0;
  uint64_t selectable = 0;
  for (const uint32_t tokens : {64u, 100u, 480u}) {
    const std::string policy = fmt::format("quest:{}", tokens);
    const TestRequest request = Prompt(480 + static_cast<int>(tokens), local.vocab(), tokens);
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
    differ += answer.tokens[0] != Expected(local, request, "") ? 1 : 0;
    // Whole pages, of which the last is filled up to the token before the last one of the answer.
    const size_t last = request.prompt.size() + 40 - 2;
    EXPECT_EQ(answer.usage.attended_tokens(), (tokens / 16 - 1) * 16 + last % 16 + 1) << policy;
    EXPECT_EQ(answer.usage.evicted_tokens(), 0u);
    for (size_t i = 0; i < 39; ++i) selectable += request.prompt.size() + i + 1;
  }
  EXPECT_GT(differ, 0) << "prompts that tell a selection from none are needed";
  const auto state = cluster.decode().front().State();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->selectable_tokens(), selectable);
  EXPECT_GT(state->selected_tokens(), 0u);
  EXPECT_LT(state->selected_tokens(), selectable / 2);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST(SelectionTest, QuantisedPagesAreSelectedToo) {
  LocalGenerator local(ModelFolder(), "i4r");
  Cluster cluster(
      {.prefill_flags = With({"--kv_format=i4r"}), .decode_flags = With({"--kv_format=i4r"})});
  const TestRequest request = Prompt(300, local.vocab(), 161);
  const TestAnswer answer = AskFor(cluster, request, "quest:64");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, "quest:64"));
}

// The same prompts in turn under several policies, batched with each other, with choices and beams,
// chunks at random, guesses checked, and pools so small that sessions are preempted.
TEST(SelectionTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 40;
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks", "--kv_memory=4MiB"}),
                   .decode_flags = With({"--kv_memory=1800KiB", "--speculation=ngram"})});
  const std::vector<std::string> policies = {"quest:64", "", "quest:100", "quest:80", "quest:4096"};
  const std::vector<TestRequest> prompts = MakeRequests(10, 300, local.vocab(), 171);
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    TestRequest request = prompts[static_cast<size_t>(i) % prompts.size()];
    request.choices = i % 3 == 0 ? 2 : 1;
    if (i % 11 == 5 && request.sampling.constraint == nullptr) request.beams = 3;
    requests.push_back(request);
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  for (int i = 0; i < kRequests; ++i) {
    const std::string& policy = policies[i % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    EXPECT_EQ(answers[i].tokens, ExpectedAll(local, requests[i], policy))
        << "request " << i << " under " << policy << " beams " << requests[i].beams;
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Every request finds the blocks of the prompt; none finds those that an answer computed while it
// selected, although exact KV of the same tokens would have the same names.
TEST(SelectionTest, TheCacheHasExactBlocksOnly) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--wire_codec=raw"}),
                   .decode_flags = With({"--local_prefill_max_tokens=0"})});
  const TestRequest request = Prompt(600, local.vocab(), 181);
  const auto exact = Expected(local, request, "");
  const auto selected = Expected(local, request, "quest:96");
  ASSERT_NE(exact, selected);
  // `cached`: the most that the prefill worker may have, or read from the decode worker.
  const auto ask = [&](const TestRequest& asked, const std::string& policy, uint64_t moved,
                       uint32_t cached) {
    const TestAnswer answer = AskFor(cluster, asked, policy);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, asked, policy)) << policy;
    EXPECT_EQ(answer.timing.kv_bytes_moved(), moved * kTokenBytes) << policy;
    EXPECT_LE(answer.usage.cached_tokens(), cached) << policy;
  };
  ask(request, "quest:96", 608, 0);
  ask(request, "quest:128", 16, 592);
  ask(request, "", 16, 592);
  // The next turn, after answers under three policies: of the exact one, its blocks are found.
  TestRequest next = request;
  next.prompt.insert(next.prompt.end(), selected.begin(), selected.end());
  ask(next, "", 640 - 592, 592);
  next.prompt = request.prompt;
  next.prompt.insert(next.prompt.end(), exact.begin(), exact.end());
  ask(next, "quest:96", 640 - 624, 624);
  // At the budget nothing is selected, so what the answer computes is exact, too.
  TestRequest small = Prompt(100, local.vocab(), 182);
  ask(small, "quest:1024", 112, 0);
  const auto answered = Expected(local, small, "");
  small.prompt.insert(small.prompt.end(), answered.begin(), answered.end());
  ask(small, "", 144 - 128, 128);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Prompts that decode workers compute themselves.
TEST(SelectionTest, ShortEndsAreComputedOnTheDecodeWorker) {
  LocalGenerator local(ModelFolder());
  Cluster cluster(
      {.prefill_flags = kAllow, .decode_flags = With({"--local_prefill_max_tokens=512"})});
  const TestRequest request = Prompt(310, local.vocab(), 183);
  for (const char* policy : {"quest:80", "quest:64", "quest:80"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
  }
}

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, and
// the answer so far is computed again as it was decoded; or it hands its sequences over.
class SelectionFailoverTest : public testing::TestWithParam<int> {};

TEST_P(SelectionFailoverTest, TheAnswerIsTheUndisturbedOne) {
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
      [&](const auto& on_tokens) { return AskFor(cluster, request, "quest:72", on_tokens); });
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  for (uint32_t choice = 0; choice < 2; ++choice) {
    EXPECT_EQ(answer.tokens[choice], Expected(local, request, "quest:72", choice));
  }
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
  // What was computed again has no exact names either.
  TestRequest next = request;
  next.tokens_max = 8;
  next.choices = 1;
  next.prompt.insert(next.prompt.end(), answer.tokens[0].begin(), answer.tokens[0].end());
  const TestAnswer exact = AskFor(cluster, next, "");
  ASSERT_TRUE(exact.status.ok()) << exact.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(exact.tokens[0], Expected(local, next, ""));
  EXPECT_LE(exact.usage.cached_tokens(), 240u);
}

INSTANTIATE_TEST_SUITE_P(Signals, SelectionFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

TEST(SelectionTest, WorkersAreTheOuterBound) {
  Cluster cluster({.prefill_flags = {"--kv_selection=quest"}});
  const TestRequest request = MakeRequest(100, 256, 53, 4);
  const TestAnswer refused = AskFor(cluster, request, "quest:64");
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(),
              HasSubstr("kv_policy is quest:64; no pair of workers supports it; supported: exact "
                        "only; start prefill and decode workers with --kv_selection=quest"));
  const TestAnswer unknown = AskFor(cluster, request, "quest:63");
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.status.error_message(), HasSubstr("quest and TOKENS 64 to 1048576"));
}

TEST(SelectionTest, LatentsAreRefusedByName) {
  const TempFolder folder;
  WriteLatentModel(folder.path());
  Process worker(
      {"penstock-decode", "--model=" + folder.path(), "--listen=127.0.0.1:0", "--kv_selection=all"},
      folder.path() + "/log");
  EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0);
  EXPECT_THAT(worker.Log(),
              HasSubstr("kv_selection is all, which needs a model without sliding windows and "
                        "latents, a kv_format without a span"));
}

}  // namespace
}  // namespace penstock
