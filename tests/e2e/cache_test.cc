// Prompts whose prefix a worker has already: the same tokens as without a cache, less computed,
// less moved, and every block accounted for.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr uint64_t kTokenBytes = 5 * 2 * 64 * 2 * 2;  // layers, KV heads, head, K and V, bf16

TestAnswer AskOne(Cluster& cluster, const TestRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  return Ask(cluster.client(), ToProto(request), context);
}

TestAnswer AskWithSalt(Cluster& cluster, const TestRequest& request, const std::string& salt) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  v1::GenerateRequest proto = ToProto(request);
  proto.mutable_cache()->set_salt(salt);
  return Ask(cluster.client(), proto, context);
}

// A prompt of exactly `tokens` tokens.
TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed) {
  return MakeRequest(tokens, vocab, seed, 24);
}

void ExpectExact(Cluster& cluster, LocalGenerator& local, const TestRequest& request,
                 const TestAnswer& answer) {
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, request.tokens_max));
}

TEST(CacheTest, ARepeatedPromptIsNeitherComputedNorMovedAgain) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = {"--random_chunks"}});
  const TestRequest request = Prompt(600, local.vocab(), 21);
  const TestAnswer first = AskOne(cluster, request);
  ExpectExact(cluster, local, request, first);
  EXPECT_EQ(first.usage.cached_tokens(), 0u);
  EXPECT_EQ(first.timing.kv_bytes_moved(), 608 * kTokenBytes);  // Whole blocks.
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
  EXPECT_GE(cluster.prefill()[0].State()->kv_blocks_cached(), 37u);
  EXPECT_GE(cluster.decode()[0].State()->kv_blocks_cached(), 37u);
  const TestAnswer again = AskOne(cluster, request);
  ExpectExact(cluster, local, request, again);
  EXPECT_EQ(again.usage.cached_tokens(), 592u);                // 37 full blocks.
  EXPECT_EQ(again.timing.kv_bytes_moved(), 16 * kTokenBytes);  // The block behind them.
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
}

// Neither in pages nor in host memory, although the pools are full again and again.
TEST(CacheTest, WithoutAPrefixCacheNothingIsKept) {
  LocalGenerator local(ModelFolder());
  const std::vector<std::string> flags = {"--prefix_cache=off", "--kv_memory=2560KiB"};
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags});
  const TestRequest request = Prompt(600, local.vocab(), 23);
  for (int i = 0; i < 4; ++i) {
    const TestAnswer answer = AskOne(cluster, request);
    ExpectExact(cluster, local, request, answer);
    EXPECT_EQ(answer.usage.cached_tokens(), 0u);
    EXPECT_EQ(answer.timing.kv_bytes_moved(), 608 * kTokenBytes);
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
    for (const auto* workers : {&cluster.prefill(), &cluster.decode()}) {
      EXPECT_EQ(workers->front().State()->kv_blocks_cached(), 0u);
    }
  }
}

// Nothing moves then: no prefill worker takes part.
TEST(CacheTest, TheEndOfTheNextTurnIsComputedByTheDecodeWorker) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.decode_flags = {"--prefill_chunk=16"}});
  const auto vocab = local.vocab();
  // Until the router knows what a prefill takes.
  for (uint32_t i = 0; i < 8; ++i) AskOne(cluster, Prompt(50, vocab, 100 + i));
  for (const int choices : {1, 4}) {
    TestRequest turn = Prompt(500, vocab, 31 + static_cast<uint32_t>(choices));
    const TestAnswer first = AskOne(cluster, turn);
    ExpectExact(cluster, local, turn, first);
    EXPECT_NE(first.timing.prefill_worker(), "");
    turn.prompt.insert(turn.prompt.end(), first.tokens[0].begin(), first.tokens[0].end());
    turn.prompt.resize(turn.prompt.size() + 45, 9);
    turn.choices = choices;
    const uint64_t steps = cluster.prefill()[0].State()->steps();
    const TestAnswer second = AskOne(cluster, turn);
    ASSERT_TRUE(second.status.ok()) << second.status.error_message() << cluster.Logs();
    for (int choice = 0; choice < choices; ++choice) {
      EXPECT_EQ(second.tokens[choice], local.Generate(turn.prompt, turn.sampling, turn.tokens_max,
                                                      static_cast<uint32_t>(choice)));
    }
    EXPECT_EQ(second.timing.prefill_worker(), "") << cluster.Logs();
    EXPECT_EQ(second.timing.kv_bytes_moved(), 0u);
    EXPECT_EQ(second.usage.cached_tokens(), 512u);  // 32 full blocks of 523 tokens
    EXPECT_EQ(cluster.prefill()[0].State()->steps(), steps);
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
}

TEST(CacheTest, TheNextTurnFindsTheAnswerOnTheDecodeWorker) {
  LocalGenerator local(ModelFolder());
  // Else the prefill worker would read the answer from there (peer_test.cc).
  Cluster cluster({.router_flags = {"--peer_reads=off"}});
  TestRequest request = Prompt(320, local.vocab(), 22);
  request.sampling.stop_token_ids.clear();
  request.tokens_max = 40;
  const TestAnswer first = AskOne(cluster, request);
  ExpectExact(cluster, local, request, first);
  TestRequest next = request;
  next.prompt.insert(next.prompt.end(), first.tokens[0].begin(), first.tokens[0].end());
  next.prompt.insert(next.prompt.end(), {5, 6, 7, 8, 9});
  const TestAnswer second = AskOne(cluster, next);
  ExpectExact(cluster, local, next, second);
  EXPECT_EQ(second.usage.cached_tokens(), 320u);  // The prefill worker has the prompt only.
  // The decode worker has the KV of all the answer but its last token.
  const size_t held = (320 + first.tokens[0].size() - 1) / 16 * 16;
  const size_t blocks = (next.prompt.size() + 15) / 16;
  EXPECT_EQ(second.timing.kv_bytes_moved(), (blocks * 16 - held) * kTokenBytes);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
}

TEST(CacheTest, APromptUnderAnotherSaltFindsNothing) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({});
  const TestRequest request = Prompt(320, local.vocab(), 23);
  for (const char* salt : {"mine", "yours", ""}) {
    const TestAnswer first = AskWithSalt(cluster, request, salt);
    ExpectExact(cluster, local, request, first);
    EXPECT_EQ(first.usage.cached_tokens(), 0u) << salt;
    const TestAnswer again = AskWithSalt(cluster, request, salt);
    ExpectExact(cluster, local, request, again);
    EXPECT_EQ(again.usage.cached_tokens(), 304u) << salt;  // All blocks but the last token's.
  }
  EXPECT_EQ(AskWithSalt(cluster, request, std::string(129, 'x')).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

// The greatest difference of the two distributions (Kolmogorov and Smirnov).
double Distance(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double distance = 0;
  for (const std::vector<double>* sample : {&a, &b}) {
    for (const double at : *sample) {
      const auto share = [at](const std::vector<double>& of) {
        return static_cast<double>(std::upper_bound(of.begin(), of.end(), at) - of.begin()) /
               static_cast<double>(of.size());
      };
      distance = std::max(distance, std::abs(share(a) - share(b)));
    }
  }
  return distance;
}

// A prompt that another tenant has cached is no faster than a new one.
TEST(CacheTest, TimesDoNotTellWhatAnotherTenantHasAsked) {
  constexpr uint32_t kRounds = 100;
  // Equal distributions are further apart once in 1,000 measurements, so there are up to three.
  const double limit = 1.95 * std::sqrt(2.0 / kRounds);
  LocalGenerator local(ModelFolder());
  Cluster cluster({});
  const auto vocab = local.vocab();
  const auto ask = [&](const TestRequest& request, const std::string& salt) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(AskWithSalt(cluster, request, salt).status.ok()) << cluster.Logs();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::mt19937 random(7);
  double to_unseen = 1, to_own = 0;
  for (uint32_t time = 0; time < 3 && !(to_unseen < limit && to_own > limit); ++time) {
    std::vector<double> others, unseen, own;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const TestRequest asked = MakeRequest(500, vocab, 5000 + 10'000 * time + i, 1);
      const TestRequest fresh = MakeRequest(500, vocab, 9000 + 10'000 * time + i, 1);
      ask(asked, "mine");
      // In any order, so that what disturbs this machine disturbs all of them.
      std::array<int, 3> order = {0, 1, 2};
      std::shuffle(order.begin(), order.end(), random);
      for (const int which : order) {
        if (which == 0) others.push_back(ask(asked, "yours"));
        if (which == 1) unseen.push_back(ask(fresh, "yours"));
        if (which == 2) own.push_back(ask(asked, "mine"));
      }
    }
    to_unseen = Distance(others, unseen);
    to_own = Distance(others, own);
  }
  EXPECT_LT(to_unseen, limit);
  EXPECT_GT(to_own, limit) << "what is cached can be told by its time";
}

// One pool of 64 blocks; prompts of 30 come and go, and only what was warmed is still there.
TEST(CacheTest, AWarmedPrefixOutlastsOthers) {
  LocalGenerator local(ModelFolder());
  // Else the prefill worker might read a prompt from the decode worker.
  Cluster cluster(
      {.prefill_flags = {"--kv_memory=2560KiB", "--dram_memory=0B", "--cache_policy=lru"},
       .router_flags = {"--peer_reads=off"}});
  const auto vocab = local.vocab();
  TestRequest warmed = Prompt(200, vocab, 31);
  v1::WarmPrefixRequest warm;
  warm.mutable_tokens()->mutable_ids()->Add(warmed.prompt.begin(), warmed.prompt.end());
  v1::WarmPrefixResponse response;
  grpc::ClientContext context;
  const grpc::Status status = cluster.client().WarmPrefix(&context, warm, &response);
  ASSERT_TRUE(status.ok()) << status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(response.usage().prompt_tokens(), 200u);
  EXPECT_EQ(response.usage().completion_tokens(), 0u);
  EXPECT_EQ(response.usage().pinned_tokens(), 192u);
  const TestRequest other = Prompt(480, vocab, 40);
  ExpectExact(cluster, local, other, AskOne(cluster, other));
  for (uint32_t seed = 41; seed < 44; ++seed) {
    const TestRequest more = Prompt(480, vocab, seed);
    ExpectExact(cluster, local, more, AskOne(cluster, more));
  }
  const TestAnswer gone = AskOne(cluster, other);
  ExpectExact(cluster, local, other, gone);
  EXPECT_EQ(gone.usage.cached_tokens(), 0u);
  const TestAnswer kept = AskOne(cluster, warmed);
  ExpectExact(cluster, local, warmed, kept);
  EXPECT_EQ(kept.usage.cached_tokens(), 192u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30)));
}

// Long and short prompts over few stems, in pools that hold about two of them: hits, evictions and
// new pages everywhere.
TEST(CacheTest, SharedPrefixesUnderPressureAreExact) {
  LocalGenerator local(ModelFolder());
  for (const char* policy : {"cost", "s3-fifo"}) {
    const std::vector<std::string> flags = {"--kv_memory=2MiB",
                                            std::string("--cache_policy=") + policy};
    Cluster cluster({.prefill_flags = flags, .decode_flags = flags});
    const auto vocab = local.vocab();
    const TestRequest stems[] = {Prompt(400, vocab, 1), Prompt(330, vocab, 2),
                                 Prompt(250, vocab, 3)};
    uint64_t cached = 0;
    for (uint32_t i = 0; i < 24; ++i) {
      TestRequest request = stems[i * 7 % 3];
      request.prompt.resize(request.prompt.size() - i * 37 % 200);
      for (uint32_t t = 0; t < i % 5 * 9; ++t) request.prompt.push_back((i * 31 + t) % vocab);
      const TestAnswer answer = AskOne(cluster, request);
      ExpectExact(cluster, local, request, answer);
      cached += answer.usage.cached_tokens();
    }
    EXPECT_GT(cached, 500u) << policy;
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
  }
}

TEST(CacheTest, WhatIsCachedIsAnnounced) {
  Cluster cluster({});
  const auto stub = v1::WorkerStatus::NewStub(
      grpc::CreateChannel(cluster.prefill()[0].endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  const auto stream = stub->WatchBlocks(&context, {});
  v1::BlockEvents batch;
  ASSERT_TRUE(stream->Read(&batch));
  EXPECT_FALSE(batch.snapshot());  // Nothing was cached, so the snapshot is over.
  EXPECT_EQ(batch.sequence(), 0u);
  EXPECT_EQ(batch.incarnation(), cluster.prefill()[0].State()->incarnation());
  ASSERT_TRUE(AskOne(cluster, Prompt(100, 256, 23)).status.ok());
  size_t ids = 0;
  for (uint64_t sequence = 1; ids < 6 && stream->Read(&batch); ++sequence) {
    EXPECT_EQ(batch.sequence(), sequence);
    for (const v1::BlockEvent& event : batch.events()) ids += event.stored().ids().size() / 16;
  }
  EXPECT_EQ(ids, 6u);
  context.TryCancel();
  grpc::ClientContext second;
  second.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  const auto later = stub->WatchBlocks(&second, {});
  ASSERT_TRUE(later->Read(&batch));
  EXPECT_TRUE(batch.snapshot());
  EXPECT_EQ(batch.events(0).stored().ids().size(), 6u * 16);
  second.TryCancel();
}

}  // namespace
}  // namespace penstock
