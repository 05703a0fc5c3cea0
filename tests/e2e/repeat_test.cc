// Calls that repeat the key of another's handoff, as a stranger's do who says again what somebody
// else said: to a worker they are a call like any other, and never reach the other's KV.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/decode_session.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

constexpr uint32_t kCallers = 6;
constexpr int kCallsEach = 600;

// A worker's call for the prompt of `request`, answered greedily. All calls have one key.
template <class Call>
Call Repeated(const TestRequest& request) {
  Call call;
  call.mutable_key()->set_session(7);
  call.mutable_key()->set_nonce(7);
  call.mutable_tokens()->Add(request.prompt.begin(), request.prompt.end());
  call.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
  call.mutable_sampling()->set_max_tokens(static_cast<uint32_t>(request.tokens_max));
  call.mutable_sampling()->set_choices(1);
  call.mutable_sampling()->set_top_p(1);
  call.mutable_sampling()->set_repetition_penalty(1);
  return call;
}

// One that is in work for several steps, and of another length each time.
v1::PrefillRequest AnyPrefill(uint32_t seed) {
  return Repeated<v1::PrefillRequest>(
      MakeRequest(100 + static_cast<int>(seed * 97 % 1200), 1024, seed, 8));
}

class Repeat : public testing::Test {
 protected:
  Repeat() : cluster_({.prefill_flags = {"--chunk_tokens=64"}}) {}

  void ExpectExact(uint32_t seed) {
    const TestRequest request = MakeRequest(200, 1024, seed, 12);
    Deadline context(seconds(60));
    const TestAnswer answer = Ask(cluster_.client(), ToProto(request), context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster_.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }

  LocalGenerator local_{ModelFolder()};
  Cluster cluster_;
};

TEST_F(Repeat, OfAPrefillThatIsInWorkReachesNothingOfIt) {
  const auto worker = v1::PrefillWorker::NewStub(
      grpc::CreateChannel(cluster_.prefill()[0].endpoint, grpc::InsecureChannelCredentials()));
  // CANCELLED when it was answered, and DEADLINE_EXCEEDED when the client left before.
  const auto call = [&](uint32_t seed, microseconds stay) {
    v1::PrefillRequest request = AnyPrefill(seed);
    request.set_decode_endpoint(cluster_.decode()[0].endpoint);
    Deadline context(stay);
    const auto reader = worker->Prefill(&context, request);
    v1::PrefillEvent event;
    while (reader->Read(&event)) {
      if (event.has_first()) context.TryCancel();
    }
    return reader->Finish().error_code();
  };
  std::atomic<int> refused{0};
  std::vector<std::thread> callers;
  for (uint32_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(caller);
      // On a slow machine no two calls may meet. Then clients stay longer.
      for (int i = 0; i < kCallsEach || (refused == 0 && i < 2 * kCallsEach); ++i) {
        const uint32_t longest = i < kCallsEach ? 6000u : 200'000u;
        const auto stay = microseconds(random() % longest);  // a client leaves at any time
        refused += call(random() % 4096, stay) == grpc::StatusCode::ALREADY_EXISTS;
      }
    });
  }
  ExpectExact(1);  // beside them
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(refused, 0) << cluster_.Logs();
  // The key is given back.
  EXPECT_TRUE(
      WaitUntil([&] { return call(5, seconds(60)) == grpc::StatusCode::CANCELLED; }, seconds(60)))
      << cluster_.Logs();
  ExpectExact(2);
  EXPECT_TRUE(cluster_.prefill()[0].process.running()) << cluster_.Logs();
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30)));
}

TEST_F(Repeat, OfASessionThatIsInWorkReachesNothingOfIt) {
  TestRequest request = MakeRequest(40, 1024, 3, 1500);
  request.sampling = {.temperature = 0};
  auto open = Repeated<v1::DecodeRequest>(request);
  open.set_prefill(true);
  open.set_prefill_alone(true);
  const auto worker = v1::DecodeWorker::NewStub(
      grpc::CreateChannel(cluster_.decode()[0].endpoint, grpc::InsecureChannelCredentials()));
  std::atomic<bool> ended{false};
  DecodedSession session;
  std::thread caller([&] {
    Deadline context(seconds(300));
    session = RunDecodeSession(*worker, &context, open);
    ended = true;
  });
  EXPECT_TRUE(WaitUntil(
      [&] {
        const auto state = cluster_.decode()[0].State();
        return state && state->running() > 0;
      },
      seconds(30)));
  int refused = 0;
  while (!ended) {
    Deadline context(seconds(60));
    const grpc::Status status = RunDecodeSession(*worker, &context, open).status;
    refused += status.error_code() == grpc::StatusCode::ALREADY_EXISTS;
  }
  caller.join();
  EXPECT_GT(refused, 0);
  ASSERT_TRUE(session.status.ok()) << session.status.error_message();
  std::vector<uint32_t> tokens;
  for (const v1::TokenOut& token : session.tokens) tokens.push_back(token.token());
  // The first token is with the prefill's own message.
  const std::vector<uint32_t> all =
      local_.Generate(request.prompt, request.sampling, request.tokens_max);
  EXPECT_EQ(tokens, std::vector(all.begin() + 1, all.end()));
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30)));
}

}  // namespace
}  // namespace penstock
