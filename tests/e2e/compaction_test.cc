// Answers of which a part of the KV is dropped while they are decoded, because a request asked for
// it: they are what the same compactions give in one process, whatever happens on the way, and they
// need no more memory than they may hold.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "kvstore/names/kv_policy.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const std::vector<std::string> kMethods = {"streaming", "tova",   "keydiff", "keynorm",
                                           "random",    "snapkv", "h2o"};

std::vector<std::string> With(std::vector<std::string> flags) {
  flags.push_back("--kv_eviction=all");
  return flags;
}

// Of an answer of `answered` tokens, those that were dropped while it was decoded.
uint32_t Dropped(const TestRequest& request, const std::string& policy, size_t answered) {
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  if (answered < 2) return 0;
  return EvictedTokens(policy, prompt, prompt + static_cast<uint32_t>(answered) - 2) -
         EvictedTokens(policy, prompt);
}

// What one process answers, with the eviction where it changes something.
std::vector<uint32_t> Expected(LocalGenerator& local, const TestRequest& request,
                               const std::string& policy, uint32_t choice = 0) {
  const auto prompt = static_cast<uint32_t>(request.prompt.size());
  const bool has_spans = policy.find('@') != std::string::npos;  // they change the order of slots
  const auto end = prompt + static_cast<uint32_t>(request.tokens_max);
  const bool orders = has_spans && EvictionOf(policy)->EvictsAnswer();
  if (!orders && EvictedTokens(policy, prompt, end) == 0) {
    return local.Generate(request.prompt, request.sampling, request.tokens_max, choice);
  }
  return local.GenerateEvicted(request.prompt, request.sampling, request.tokens_max, policy,
                               choice);
}

// Sampled, so that what is lost shows.
TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed, int tokens_max) {
  TestRequest request = MakeRequest(tokens, vocab, seed, tokens_max);
  request.sampling.stop_token_ids.clear();
  return request;
}

// Prompts that lose tokens themselves, and some that do not.
TEST(CompactionTest, EveryMethodGivesWhatItGivesInOneProcess) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--random_chunks"}), .decode_flags = With({})});
  uint32_t seed = 240, differ = 0;
  uint64_t dropped = 0, compactions = 0;
  for (const std::string& method : kMethods) {
    for (const int prompt : {300, 50}) {
      ++seed;
      const std::string policy =
          fmt::format("{}:{}+{}", method, 64 + seed % 20,
                      SlackTokensMin(EvictionOf(method + ":64")->method) + seed % 9);
      const TestRequest request = Prompt(prompt, local.vocab(), seed, 130);
      const TestAnswer answer = AskFor(cluster, request, policy);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
      EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
      const uint32_t lost = Dropped(request, policy, answer.tokens[0].size());
      EXPECT_GT(lost, 0u);
      EXPECT_EQ(answer.usage.decode_evicted_tokens(), lost) << policy;
      EXPECT_EQ(answer.usage.compactions() * EvictionOf(policy)->slack_tokens, lost);
      dropped += lost;
      compactions += answer.usage.compactions();
      const std::string prompt_only = policy.substr(0, policy.find('+'));
      differ += answer.tokens[0] != Expected(local, request, prompt_only) ? 1 : 0;
    }
  }
  EXPECT_GT(differ, 5u) << "prompts that tell compactions from none are needed";
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  const auto state = cluster.decode().front().State();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->decode_evicted_tokens(), dropped);
  EXPECT_EQ(state->compactions(), compactions);
  EXPECT_EQ(state->kv_blocks_cached(), 0u) << "a decode worker caches nothing of it";
}

TEST(CompactionTest, QuantisedPagesAreCompactedToo) {
  LocalGenerator local(ModelFolder(), "k3v2");
  Cluster cluster({.prefill_flags = With({"--random_chunks", "--kv_format=k3v2"}),
                   .decode_flags = With({"--kv_format=k3v2"})});
  const TestRequest request = Prompt(200, local.vocab(), 260, 120);
  for (const char* policy : {"streaming:70+20", "tova:64+16", "snapkv:66+33", "h2o:66+20"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], Expected(local, request, policy)) << policy;
  }
}

// Batched with others and with each other, with choices, chunks at random, any number of guesses,
// and pools so small that sessions are preempted.
TEST(CompactionTest, ManyAtOnceChangeNothing) {
  constexpr int kRequests = 40;
  LocalGenerator local(ModelFolder());
  Cluster cluster(
      {.prefill = 2,
       .decode = 2,
       .prefill_flags = With({"--random_chunks", "--kv_memory=4MiB"}),
       .decode_flags = With({"--kv_memory=1800KiB", "--speculation=ngram", "--random_drafts"})});
  const std::vector<std::string> policies = {"streaming:64+16",
                                             "",
                                             "tova:80+32",
                                             "keydiff:64+40",
                                             "streaming:4096+100",
                                             "snapkv:80+40",
                                             "tova:64",
                                             "snapkv:64+32",
                                             "snapkv:80+40@7-30",
                                             "keydiff:64+16@0-9,12-20",
                                             "streaming:64@3-30",
                                             "h2o:64+32",
                                             "h2o:80+16@7-30"};
  const std::vector<TestRequest> prompts = MakeRequests(10, 300, local.vocab(), 270);
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    TestRequest request = prompts[static_cast<size_t>(i) % prompts.size()];
    request.tokens_max += 60;
    request.choices = i % 3 == 0 ? 2 : 1;
    const bool has_spans =
        policies[static_cast<size_t>(i) % policies.size()].find('@') != std::string::npos;
    if (has_spans && request.prompt.size() < 30) request.prompt.resize(30, 7);
    requests.push_back(request);
  }
  const std::vector<TestAnswer> answers = AskForAll(cluster, requests, policies);
  uint64_t compactions = 0;
  for (int i = 0; i < kRequests; ++i) {
    const std::string& policy = policies[i % policies.size()];
    ASSERT_TRUE(answers[i].status.ok()) << answers[i].status.error_message() << cluster.Logs();
    compactions += answers[i].usage.compactions();
    for (int choice = 0; choice < requests[i].choices; ++choice) {
      EXPECT_EQ(answers[i].tokens[choice],
                Expected(local, requests[i], policy, static_cast<uint32_t>(choice)))
          << "request " << i << " under " << policy;
    }
  }
  EXPECT_GT(compactions, 10u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Choices are compacted behind the same token, and a step has no room for the windows of all.
TEST(CompactionTest, ManyWindowsInOneStepWaitForEachOther) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({}),
                   .decode_flags = With({"--chunk_tokens=32", "--prefill_chunk=16",
                                         "--max_batch=16", "--speculation=ngram"})});
  for (const char* policy : {"snapkv:64+36", "h2o:64+100"}) {
    TestRequest request = Prompt(100, local.vocab(), 284, 150);
    request.choices = 12;
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    for (uint32_t choice = 0; choice < 12; ++choice) {
      EXPECT_EQ(answer.tokens[choice], Expected(local, request, policy, choice)) << choice;
    }
  }
}

// As an answer without a policy, bit by bit: under guesses that fill nothing.
TEST(CompactionTest, ALimitThatIsNeverPassedChangesNothing) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--random_chunks"}),
                   .decode_flags = With({"--speculation=ngram", "--random_drafts"})});
  const TestRequest request = Prompt(100, local.vocab(), 286, 60);
  const auto exact = Expected(local, request, "");
  // The last token of an answer is never computed.
  for (const char* policy : {"h2o:100+59", "h2o:160+16", "snapkv:100+59", "tova:150+16"}) {
    const TestAnswer answer = AskFor(cluster, request, policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], exact) << policy;
    EXPECT_EQ(answer.usage.compactions(), 0u) << policy;
  }
}

// An answer of ten times its budget in a pool of its limit, beside one that does not fit there
// without a policy.
TEST(CompactionTest, ALongAnswerNeedsAPoolOfItsLimit) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({}), .decode_flags = With({"--kv_memory=240KiB"})});
  const TestRequest request = Prompt(200, local.vocab(), 280, 640);
  const TestAnswer answer = AskFor(cluster, request, "streaming:64+32");
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], Expected(local, request, "streaming:64+32"));
  const TestAnswer refused = AskFor(cluster, request, "streaming:64");
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// The parameters are the policy, and the signal that the decode worker gets in the middle of the
// answer: it dies, and the answer so far is computed again through the same compactions; or it
// hands its sequences over as they are.
constexpr uint32_t kMuchSlack = 200;

class CompactedFailoverTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(CompactedFailoverTest, TheAnswerIsTheUndisturbedOne) {
  const char* const policy = std::get<0>(GetParam());
  const int signal = std::get<1>(GetParam());
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1,
                   .decode = 3,
                   .prefill_flags = With({"--random_chunks"}),
                   .decode_flags = With({})});
  const bool has_spans = std::string(policy).find('@') != std::string::npos;
  for (const int prompt : {250, has_spans ? 40 : 9}) {  // 9 are less than snapkv observes
    TestRequest request = Prompt(prompt, local.vocab(), 290, 580);
    request.choices = 2;
    // With little slack compactions may pass a move by, again and again, until the answer ends.
    const bool moves = EvictionOf(policy)->slack_tokens == kMuchSlack;
    const bool may_pass = signal == SIGTERM && !moves;
    const TestAnswer answer = AskDisturbed(
        cluster, {.signal = signal, .tokens = 150, .may_pass = may_pass},
        [&](const auto& on_tokens) { return AskFor(cluster, request, policy, on_tokens); });
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    for (uint32_t choice = 0; choice < 2; ++choice) {
      EXPECT_EQ(answer.tokens[choice], Expected(local, request, policy, choice));
    }
    EXPECT_EQ(answer.usage.decode_evicted_tokens(), 2 * Dropped(request, policy, 580));
    if (signal == SIGTERM && moves) {
      EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Signals, CompactedFailoverTest,
    testing::Combine(testing::Values("streaming:64+40", "tova:64+64", "keydiff:72+200",
                                     "snapkv:64+32", "snapkv:70+200", "streaming:64+40@9-17,30-40",
                                     "snapkv:64+200@2-20", "h2o:64+40", "h2o:64+128@2-20"),
                     testing::Values(SIGKILL, SIGTERM)),
    [](const auto& test) {
      const std::string policy = std::get<0>(test.param);
      const auto has = [&](const char* text) { return policy.find(text) != std::string::npos; };
      return policy.substr(0, policy.find(':')) + (has("+200") ? "Much" : "") +
             (has("@") ? "Spans" : "") + (std::get<1>(test.param) == SIGKILL ? "Kill" : "Term");
    });

TEST(CompactionTest, WhatIsIncompatibleIsNamed) {
  Cluster cluster({.prefill_flags = With({}), .decode_flags = With({})});
  const TestRequest request = MakeRequest(100, 256, 53, 4);
  for (const char* policy : {"snapkv:64+31", "h2o:64+129", "tova:64+15"}) {
    const TestAnswer refused = AskFor(cluster, request, policy);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << policy;
    EXPECT_THAT(refused.status.error_message(),
                HasSubstr("METHOD snapkv, h2o, tova, keydiff, keynorm, streaming, random and SLACK "
                          "16 to 1048576, 32 or more for snapkv, at most 128 for h2o"));
  }
  v1::GenerateRequest searched = ToProto(request, "tova:64+32");
  searched.mutable_sampling()->mutable_beam_search()->set_width(2);
  grpc::ClientContext context;
  EXPECT_THAT(Ask(cluster.client(), searched, context).status.error_message(),
              HasSubstr("kv_policy is tova:64+32, which cannot be combined with a beam search"));
}

}  // namespace
}  // namespace penstock
