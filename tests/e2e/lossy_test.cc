// KV that goes over the wire by a lossy codec, because a request asked for it: the answer is what
// that codec gives in one process, exact requests hear nothing of it, and who may not ask is told.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>

#include "kvstore/names/kv_policy.h"
#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kTokenBytes = 5 * 2 * 64 * 2 * 2;  // layers, KV heads, head, K and V, bf16

TestAnswer AskFor(Cluster& cluster, const TestRequest& request, const std::string& policy,
                  const std::string& key = "") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  v1::GenerateRequest proto = ToProto(request);
  proto.set_kv_policy(policy);
  proto.mutable_output()->set_timing(true);
  return Ask(cluster.client(), proto, context);
}

TestRequest Prompt(int tokens, uint32_t vocab, uint32_t seed) {
  return MakeRequest(tokens, vocab, seed, 32);
}

// With a fixed --wire_codec, what a request names is what its KV goes as.
TEST(LossyTest, EveryCodecGivesWhatItGivesInOneProcess) {
  LocalGenerator local(ModelFolder());
  const auto vocab = local.vocab();
  Cluster cluster({.prefill_flags = {"--random_chunks", "--wire_codec=lxr", "--lossy_kv=all"},
                   .decode_flags = {"--lossy_kv=all"}});
  uint32_t seed = 40;
  for (const std::string& name : LossyCodecNames()) {
    ++seed;
    const TestRequest request = Prompt(500 + static_cast<int>(seed % 16), vocab, seed);
    const TestAnswer lossy = AskFor(cluster, request, name);
    ASSERT_TRUE(lossy.status.ok()) << lossy.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(lossy.tokens[0], local.Generate(request.prompt, request.sampling, request.tokens_max,
                                              0, *ParseKvCodec(name)))
        << name;
    EXPECT_THAT(lossy.timing.kv_codecs(), ElementsAre(name));
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// The same prompt in turn: what is exact is computed as ever, and found by exact requests only.
TEST(LossyTest, ExactRequestsFindNothingOfIt) {
  LocalGenerator local(ModelFolder());
  const auto vocab = local.vocab();
  Cluster cluster({.prefill_flags = {"--random_chunks", "--wire_codec=lxr", "--lossy_kv=kv2,i8"},
                   .decode_flags = {"--lossy_kv=kv2,i8"}});
  const TestRequest request = Prompt(600, vocab, 51);
  const auto exact = local.Generate(request.prompt, request.sampling, request.tokens_max);
  const auto rough =
      local.Generate(request.prompt, request.sampling, request.tokens_max, 0, {KvCodec::kKv2});
  ASSERT_NE(exact, rough) << "a prompt that tells them apart is needed";
  // Policy, answer, KV that moves: all of it where that policy is new, else the last block.
  const struct {
    const char* policy;
    const std::vector<uint32_t>& answer;
    uint64_t tokens_moved;
    const char* codec;
  } turns[] = {{"kv2", rough, 608, "kv2"},
               {"exact", exact, 608, "lxr"},
               {"kv2", rough, 16, "kv2"},
               {"", exact, 16, "lxr"},
               {"kv2", rough, 16, "kv2"}};
  for (const auto& turn : turns) {
    const TestAnswer answer = AskFor(cluster, request, turn.policy);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], turn.answer) << turn.policy;
    EXPECT_EQ(answer.timing.kv_bytes_moved(), turn.tokens_moved * kTokenBytes) << turn.policy;
    EXPECT_THAT(answer.timing.kv_codecs(), ElementsAre(turn.codec));
  }
  // Nor does another lossy policy.
  const TestAnswer other = AskFor(cluster, request, "i8");
  EXPECT_EQ(other.timing.kv_bytes_moved(), 608 * kTokenBytes);
  // A prefill worker keeps exact KV, whoever asked for it.
  EXPECT_EQ(other.usage.cached_tokens(), 592u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// The next turn goes on behind what was generated from lossy KV, which exact requests do not find.
TEST(LossyTest, WhatIsGeneratedBehindItIsNotExactEither) {
  LocalGenerator local(ModelFolder());
  const auto vocab = local.vocab();
  Cluster cluster({.prefill_flags = {"--wire_codec=raw", "--lossy_kv=kv2"},
                   .decode_flags = {"--lossy_kv=kv2"}});
  TestRequest request = Prompt(320, vocab, 52);
  request.sampling.stop_token_ids.clear();
  request.tokens_max = 80;
  const TestAnswer first = AskFor(cluster, request, "kv2");
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  TestRequest next = request;
  next.prompt.insert(next.prompt.end(), first.tokens[0].begin(), first.tokens[0].end());
  next.prompt.push_back(9);
  next.tokens_max = 16;
  const auto whole_blocks = (next.prompt.size() + 15) / 16 * 16;
  const TestAnswer exact = AskFor(cluster, next, "");
  ASSERT_TRUE(exact.status.ok()) << exact.status.error_message();
  EXPECT_EQ(exact.tokens[0], local.Generate(next.prompt, next.sampling, next.tokens_max));
  EXPECT_EQ(exact.timing.kv_bytes_moved(), whole_blocks * kTokenBytes);
  const TestAnswer lossy = AskFor(cluster, next, "kv2");
  ASSERT_TRUE(lossy.status.ok()) << lossy.status.error_message();
  EXPECT_LE(lossy.timing.kv_bytes_moved(), 32 * kTokenBytes) << "its own blocks, the answer's too";
}

TEST(LossyTest, WorkersAreTheOuterBound) {
  Cluster cluster(
      {.prefill_flags = {"--lossy_kv=near-lossless,cgx2"}, .decode_flags = {"--lossy_kv=i8,cgx3"}});
  const TestRequest request = Prompt(64, 256, 53);
  for (const char* policy : {"f8", "cgx2", "cgx3", "kv2"}) {
    const TestAnswer refused = AskFor(cluster, request, policy);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << policy;
    EXPECT_THAT(refused.status.error_message(),
                HasSubstr(fmt::format(
                    "kv_policy is {}; no pair of workers supports it; supported: i8", policy)));
  }
  const TestAnswer unknown = AskFor(cluster, request, "lx16");
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(unknown.status.error_message(), HasSubstr("kv_policy"));
  for (const char* policy : {"i8", "near-lossless", "exact"}) {
    EXPECT_TRUE(AskFor(cluster, request, policy).status.ok()) << policy;
  }
}

TEST(LossyTest, TenantsAreABoundWithinThat) {
  TempFolder folder;
  const std::string path = folder.path() + "/keys.json";
  // sha256sum of "open-key" and "strict-key".
  std::ofstream(path) << R"({"tenants": [
      {"name": "open", "kv_policy": "i8"},
      {"name": "strict", "kv_policies": ["near-lossless"]}],
    "keys": [
      {"id": "o", "tenant": "open", "sha256": "e4e46029e26599698562b54124889cca4f3d7da5925b92f8e81a1125c9aa795d"},
      {"id": "s", "tenant": "strict", "sha256": "083ec72c0b3129e378780f0a1f44da8c40053ed7f6810e5644b459af0cb5731b"}]})";
  Cluster cluster({.prefill_flags = {"--wire_codec=raw", "--lossy_kv=near-lossless,kv2"},
                   .decode_flags = {"--lossy_kv=near-lossless,kv2"},
                   .router_flags = {"--keys_file=" + path},
                   .api_key = "open-key"});
  const TestRequest request = Prompt(200, 256, 54);
  EXPECT_THAT(AskFor(cluster, request, "", "open-key").timing.kv_codecs(), ElementsAre("i8"));
  EXPECT_THAT(AskFor(cluster, request, "kv2", "open-key").timing.kv_codecs(), ElementsAre("kv2"));
  EXPECT_THAT(AskFor(cluster, request, "exact", "open-key").timing.kv_codecs(), ElementsAre("raw"));
  EXPECT_THAT(AskFor(cluster, request, "", "strict-key").timing.kv_codecs(), ElementsAre("raw"));
  EXPECT_TRUE(AskFor(cluster, request, "near-lossless", "strict-key").status.ok());
  const TestAnswer refused = AskFor(cluster, request, "kv2", "strict-key");
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.status.error_message(),
              HasSubstr("kv_policy \"kv2\" is not one of the tenant's; it may be exact, "
                        "near-lossless"));
}

}  // namespace
}  // namespace penstock
