// Prompts whose documents are re-used, because a request asked for it: they are computed once and
// blended in any order, with the same answer whatever is cached; what is blended is in no cache;
// and who may not ask is told.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/blended_documents.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/window_model.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Any deviation is allowed, so that prompts of random tokens are blended.
const std::vector<std::string> kAllow = {"--kv_blend_deviation=10"};

std::vector<std::string> With(std::vector<std::string> flags) {
  flags.insert(flags.end(), kAllow.begin(), kAllow.end());
  return flags;
}

uint32_t Held(uint32_t document) { return DocumentSizes().Held(document); }

std::vector<uint32_t> Exact(LocalGenerator& local, const Documents& documents) {
  const TestRequest& request = documents.request;
  return local.Generate(request.prompt, request.sampling, request.tokens_max);
}

TEST(BlendTest, DocumentsAreComputedOnceAndUsedInAnyOrder) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = With({"--random_chunks"}), .decode_flags = kAllow});
  const TestAnswer first = AskBlended(cluster, InOrder({0, 1, 2, 3}), "blend:15");
  EXPECT_EQ(first.usage.blend().reused_tokens(), Held(1) + Held(2) + Held(3));
  EXPECT_GE(first.usage.blend().filled_tokens(), Held(1) + Held(2) + Held(3));

  const Documents other = InOrder({3, 1, 0, 2});
  const TestAnswer second = AskBlended(cluster, other, "blend:15");
  const v1::BlendUsage& blend = second.usage.blend();
  EXPECT_EQ(blend.filled_tokens(), 0u) << "all documents were known";
  EXPECT_EQ(second.usage.cached_tokens(), kLeading + Held(3)) << "the first document is exact";
  EXPECT_EQ(blend.reused_tokens(), Held(1) + Held(0) + Held(2));
  EXPECT_EQ(blend.recomputed_tokens(),
            (Held(1) * 15 + 99) / 100 + (Held(0) * 15 + 99) / 100 + (Held(2) * 15 + 99) / 100);
  EXPECT_EQ(blend.fallback_tokens(), 0u);
  EXPECT_GT(blend.deviation(), 0);
  EXPECT_NE(second.tokens[0], Exact(local, other)) << "a prompt that tells a blend is needed";
  const auto state = cluster.prefill().front().State();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->blend_reused_tokens(),
            first.usage.blend().reused_tokens() + blend.reused_tokens());
  EXPECT_EQ(state->blend_recomputed_tokens(),
            first.usage.blend().recomputed_tokens() + blend.recomputed_tokens());
  EXPECT_EQ(state->blend_fallback_tokens(), 0u);
  EXPECT_EQ(state->blend_filled_tokens(), first.usage.blend().filled_tokens());
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();

  // Nothing cached, and other chunks: the same answer.
  Cluster cold({.prefill_flags = kAllow, .decode_flags = kAllow});
  const TestAnswer again = AskBlended(cold, other, "blend:15");
  EXPECT_EQ(again.tokens, second.tokens);
  EXPECT_EQ(again.usage.blend().recomputed_tokens(), blend.recomputed_tokens());
  EXPECT_FLOAT_EQ(again.usage.blend().deviation(), blend.deviation());
  EXPECT_GT(again.usage.blend().filled_tokens(), 0u);
}

TEST(BlendTest, AllComputedIsTheExactAnswer) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = kAllow, .decode_flags = kAllow});
  AskBlended(cluster, InOrder({0, 1, 2, 3}), "blend:15");
  const Documents other = InOrder({2, 3, 1});
  const TestAnswer answer = AskBlended(cluster, other, "blend:100");
  EXPECT_EQ(answer.tokens[0], Exact(local, other));
  EXPECT_FALSE(answer.usage.has_blend());
}

// Keys that move are decoded, rotated and coded again; a blend whose tokens are all computed is
// exact there too, which means: what a prompt has in pages of the format.
TEST(BlendTest, QuantisedPagesAreBlendedToo) {
  for (const std::string format : {"i8", "k3v2"}) {
    LocalGenerator local(ModelFolder(), format);
    std::vector<std::string> flags = With({"--kv_format=" + format});
    Cluster cluster({.prefill_flags = flags, .decode_flags = flags});
    AskBlended(cluster, InOrder({0, 1, 2, 3}), "blend:15");
    const Documents other = InOrder({2, 3, 1});
    EXPECT_EQ(AskBlended(cluster, other, "blend:100").tokens[0], Exact(local, other)) << format;
    const TestAnswer warm = AskBlended(cluster, other, "blend:15");
    EXPECT_EQ(warm.usage.blend().filled_tokens(), 0u);
    flags.emplace_back("--random_chunks");
    Cluster cold({.prefill_flags = flags, .decode_flags = With({"--kv_format=" + format})});
    const TestAnswer again = AskBlended(cold, other, "blend:15");
    EXPECT_EQ(again.tokens, warm.tokens) << format;
    EXPECT_GT(again.usage.blend().filled_tokens(), 0u);
  }
}

TEST(BlendTest, PartsThatDeviateTooFarAreComputedInFull) {
  LocalGenerator local(ModelFolder());
  const std::vector<std::string> strict = {"--kv_blend_deviation=0.0001"};
  Cluster cluster({.prefill_flags = strict, .decode_flags = strict});
  const Documents documents = InOrder({0, 1, 2});
  const TestAnswer answer = AskBlended(cluster, documents, "blend:15");
  EXPECT_EQ(answer.tokens[0], Exact(local, documents));
  const v1::BlendUsage& blend = answer.usage.blend();
  EXPECT_EQ(blend.fallback_tokens(), blend.reused_tokens());
  EXPECT_EQ(blend.recomputed_tokens(), blend.reused_tokens());
  EXPECT_GT(blend.deviation(), 0.0001f);
  const auto state = cluster.prefill().front().State();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->blend_fallback_tokens(), blend.fallback_tokens());
}

// Exact requests have the same tokens before and after, and find exact blocks only: the documents
// that were computed alone, and no block of the blended prompt behind its first document.
TEST(BlendTest, TheCacheHasExactBlocksOnly) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 1,
                   .decode = 1,
                   .prefill_flags = With({"--kv_memory=16MiB"}),
                   .decode_flags = With({"--local_prefill_max_tokens=0"})});
  const Documents documents = InOrder({0, 1, 2});
  const TestAnswer blended = AskBlended(cluster, documents, "blend:15");
  const TestAnswer exact = AskFor(cluster, documents.request, "");
  ASSERT_TRUE(exact.status.ok()) << exact.status.error_message();
  EXPECT_EQ(exact.tokens[0], Exact(local, documents));
  EXPECT_EQ(exact.usage.cached_tokens(), (kLeading + 150) / 16 * 16);
  EXPECT_FALSE(exact.usage.has_blend());
  // The next turn behind the blended answer: nothing of it is found either.
  Documents next = documents;
  next.request.prompt.insert(next.request.prompt.end(), blended.tokens[0].begin(),
                             blended.tokens[0].end());
  const TestAnswer turn = AskFor(cluster, next.request, "");
  ASSERT_TRUE(turn.status.ok()) << turn.status.error_message();
  EXPECT_EQ(turn.tokens[0], Exact(local, next));
  // And a document alone, as it was computed for the blend.
  const Documents alone = InOrder({2});
  const TestAnswer single = AskFor(cluster, alone.request, "");
  ASSERT_TRUE(single.status.ok()) << single.status.error_message();
  EXPECT_EQ(single.tokens[0], Exact(local, alone));
  EXPECT_EQ(single.usage.cached_tokens(), kLeading + Held(2));
  // Blended again after exact requests: the same answer.
  EXPECT_EQ(AskBlended(cluster, documents, "blend:15").tokens, blended.tokens);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Documents that were evicted come back from NVMe, in the same worker and in the next one, and give
// the same answer.
TEST(BlendTest, DocumentsComeBackFromNvme) {
  LocalGenerator local(ModelFolder());
  const TempFolder nvme;
  const Documents first = InOrder({0, 1, 2, 3}), other = InOrder({3, 1, 0, 2});
  const uint32_t all = Held(0) + Held(1) + Held(2) + Held(3);
  std::vector<uint32_t> answer;
  for (int life = 0; life < 2; ++life) {
    Cluster cluster(
        {.prefill_flags = With({"--kv_memory=8MiB", "--dram_memory=1MiB", "--nvme_min_uses=1",
                                "--nvme_dir=" + nvme.path() + "/kv", "--nvme_size=64MiB"}),
         .decode_flags = kAllow});
    const WorkerProcess& worker = cluster.prefill().front();
    EXPECT_TRUE(WaitUntil([&] { return HasFoundNvme(worker); }, seconds(30)));
    if (life == 0) {
      EXPECT_GT(AskBlended(cluster, first, "blend:15").usage.blend().filled_tokens(), 0u);
      answer = AskBlended(cluster, other, "blend:15").tokens[0];
      // Other documents, used as often, until the first ones are below.
      for (int round = 0; round < 2; ++round) {
        for (uint32_t i = 4; i < 10; i += 2) {
          AskBlended(cluster, InOrder({i, i + 1}), "blend:15");
          AskBlended(cluster, InOrder({i + 1, i}), "blend:15");
        }
      }
    }
    const TestAnswer again = AskBlended(cluster, other, "blend:15");
    EXPECT_EQ(again.tokens[0], answer) << "life " << life;
    EXPECT_LT(again.usage.blend().filled_tokens(), all) << "life " << life;
    EXPECT_GT(TierOf(worker, v1::NVME).restores(), 0u) << "life " << life;
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
  }
}

TEST(BlendTest, TextIsDividedBySeparators) {
  Cluster cluster({.prefill_flags = kAllow, .decode_flags = kAllow});
  const auto ask = [&](const std::string& text) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.set_kv_policy("blend:20");
    request.set_blend_separator("[SEP]");
    request.mutable_stop()->set_max_tokens(8);
    Deadline context(std::chrono::minutes(2));
    return Ask(cluster.client(), request, context);
  };
  const std::string a = "The harbour was full of ships. It rained all day, and nobody worked. ";
  const std::string b = "A letter came in the morning. The old man read it twice and said no. ";
  const std::string question = "Question: what did the man say?";
  const TestAnswer first = ask("Read this. [SEP]" + a + a + "[SEP]" + b + b + "[SEP]" + question);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message() << cluster.Logs();
  EXPECT_GT(first.usage.blend().filled_tokens(), 0u);
  const TestAnswer second = ask("Read this. [SEP]" + b + b + "[SEP]" + a + a + "[SEP]" + question);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message() << cluster.Logs();
  EXPECT_GT(second.usage.blend().reused_tokens(), 0u);
  EXPECT_EQ(second.usage.blend().filled_tokens(), 0u);
  EXPECT_EQ(second.usage.prompt_tokens(), first.usage.prompt_tokens());
  const TestAnswer none = ask("no document");
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(none.status.error_message(), HasSubstr("blend_separator divides the prompt into 1"));
}

// Many at once, in pools that do not hold all: each waits for its parts, and all are answered.
TEST(BlendTest, ManyAtOnceChangeNothing) {
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = With({"--kv_memory=8MiB", "--random_chunks"}),
                   .decode_flags = kAllow});
  const std::vector<std::vector<uint32_t>> orders = {{0, 1, 2}, {2, 1, 0}, {1, 3}, {3, 2, 1}};
  std::vector<TestAnswer> alone;
  for (const auto& order : orders) {
    alone.push_back(AskBlended(cluster, InOrder(order, 12), "blend:25"));
  }
  std::vector<TestAnswer> answers(24);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (size_t i = c; i < answers.size(); i += 8) {
        answers[i] = AskBlended(cluster, InOrder(orders[i % orders.size()], 12), "blend:25");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, alone[i % orders.size()].tokens) << i;
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// The decode worker dies, or hands its sequence over, in the middle of the answer.
class BlendFailoverTest : public testing::TestWithParam<int> {};

TEST_P(BlendFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.prefill = 1,
                   .decode = 2,
                   .prefill_flags = With({"--random_chunks"}),
                   .decode_flags = kAllow});
  const Documents documents = InOrder({1, 0, 2}, 300);
  const TestAnswer calm = AskBlended(cluster, documents, "blend:15");
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 50},
      [&](const auto& on_tokens) { return AskBlended(cluster, documents, "blend:15", on_tokens); });
  EXPECT_EQ(answer.tokens, calm.tokens);
}

INSTANTIATE_TEST_SUITE_P(Signals, BlendFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

TEST(BlendTest, RefusalsNameWhatIsIncompatible) {
  Cluster cluster({.prefill_flags = kAllow});
  const Documents documents = InOrder({0, 1});
  const auto refusal = [&](const v1::GenerateRequest& request) {
    Deadline context(std::chrono::minutes(2));
    const TestAnswer answer = Ask(cluster.client(), request, context);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return answer.status.error_message();
  };
  v1::GenerateRequest request = ToProto(documents.request, "blend:15");
  request.mutable_blend_parts()->Assign(documents.parts.begin(), documents.parts.end());
  EXPECT_THAT(refusal(request),
              HasSubstr("kv_policy is blend:15; no pair of workers supports it; supported: exact "
                        "only; start prefill and decode workers with --kv_blend_deviation"));
  request.set_kv_policy("");
  EXPECT_THAT(refusal(request), HasSubstr("blend_parts is set, and kv_policy is exact"));
  request.set_kv_policy("blend:101");
  EXPECT_THAT(refusal(request), HasSubstr("blend:PERCENT with PERCENT 1 to 100"));
  request.set_kv_policy("blend:15");
  request.mutable_blend_parts()->Set(1, 3);
  EXPECT_THAT(refusal(request), HasSubstr("blend_parts[1] is 3; entries must ascend"));
  request.set_blend_separator("#");
  EXPECT_THAT(refusal(request), HasSubstr("blend_separator is for text and chats"));
}

TEST(BlendTest, IncompatibleModelsAreRefusedByName) {
  const TempFolder folder;
  WriteWindowModel(folder.path(), 64);
  Process worker({"penstock-prefill", "--model=" + folder.path(), "--listen=127.0.0.1:0",
                  "--kv_blend_deviation=0.5"},
                 folder.path() + "/log");
  EXPECT_NE(worker.Wait(seconds(30)).value_or(0), 0);
  EXPECT_THAT(worker.Log(),
              HasSubstr("kv_blend_deviation is 0.5, which needs a model of at least three layers "
                        "without sliding windows"));
}

}  // namespace
}  // namespace penstock
