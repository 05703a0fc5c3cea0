// The router as its clients see it, while workers fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "tests/router/service/cluster.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// The one of several workers that has a call.
FakeWorker& Busy(std::vector<std::unique_ptr<FakeWorker>>& workers) {
  for (auto& worker : workers) {
    if (worker->open_calls() > 0) return *worker;
  }
  ADD_FAILURE() << "no worker has a call";
  return *workers[0];
}

v1::GenerateRequest WithTiming(v1::GenerateRequest request) {
  request.mutable_output()->set_timing(true);
  return request;
}

TEST(RouterFailure, ADecodeWorkerThatDiesInMidStreamIsNotNoticedByTheClient) {
  Cluster cluster({.prefill = 1, .decode = 2});
  ASSERT_TRUE(cluster.WaitForReady());
  for (auto& worker : cluster.decode) worker->HoldAt(20);
  Call call(*cluster.stub, WithTiming(Request(100)));
  ASSERT_TRUE(call.ReadText(20));
  FakeWorker& victim = Busy(cluster.decode);
  for (auto& worker : cluster.decode) {
    if (worker.get() != &victim) worker->Release();
  }
  victim.Kill();
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.text.at(0), ExpectedAnswer(0, 100));
  EXPECT_EQ(answer.endings[0].timing().migrations(), 1u);
  EXPECT_EQ(answer.endings[0].usage().recomputed_tokens(), 16u + 20u);
  EXPECT_EQ(answer.endings[0].usage().completion_tokens(), 100u);
}

// Behind the first token, any, and the last but one. `Call` checks that no sequence is missing.
TEST(RouterFailure, ADecodeWorkerMayDieBehindAnyToken) {
  constexpr uint32_t kTokens = 60;
  for (const uint32_t at : {1u, 2u, 31u, kTokens - 1}) {
    SCOPED_TRACE(at);
    Cluster cluster({.prefill = 1, .decode = 2, .stale_after = 60s});
    ASSERT_TRUE(cluster.WaitForReady());
    for (auto& worker : cluster.decode) worker->HoldAt(at);
    Call call(*cluster.stub, WithTiming(Request(kTokens)));
    ASSERT_TRUE(call.ReadText(at));
    ASSERT_TRUE(WaitUntil(
        [&] { return cluster.decode[0]->held_calls() + cluster.decode[1]->held_calls() == 1; }));
    FakeWorker& victim = Busy(cluster.decode);
    for (auto& worker : cluster.decode) {
      if (worker.get() != &victim) worker->Release();
    }
    const auto killed = std::chrono::steady_clock::now();
    victim.Kill();
    ASSERT_TRUE(call.ReadText(at + 1));
    EXPECT_LT(std::chrono::steady_clock::now() - killed, 30s) << "not when it has been silent";
    const Answer& answer = call.ReadAll();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.text.at(0), ExpectedAnswer(0, kTokens));
    EXPECT_EQ(answer.endings[0].timing().migrations(), 1u);
    EXPECT_EQ(answer.endings[0].usage().recomputed_tokens(), 16u + at);
  }
}

TEST(RouterFailure, ChoicesThatHaveComeApartGoOnExactly) {
  Cluster cluster({.prefill = 2, .decode = 2});
  ASSERT_TRUE(cluster.WaitForReady());
  for (auto& worker : cluster.decode) worker->HoldAt(9);
  v1::GenerateRequest request = Request(50);
  request.mutable_sampling()->set_n(4);
  Call call(*cluster.stub, request);
  ASSERT_TRUE(call.ReadText(9));
  FakeWorker& victim = Busy(cluster.decode);
  for (auto& worker : cluster.decode) {
    if (worker.get() != &victim) worker->Release();
  }
  victim.Kill();
  const Answer& answer = call.ReadAll();
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(answer.text.at(i), ExpectedAnswer(i, 50)) << i;
}

TEST(RouterFailure, APrefillWorkerThatDiesBeforeTheFirstTokenIsReplaced) {
  Cluster cluster({.prefill = 2, .decode = 1});
  ASSERT_TRUE(cluster.WaitForReady());
  for (auto& worker : cluster.prefill) worker->HoldAt(0);
  Call call(*cluster.stub, Request(30));
  ASSERT_TRUE(WaitUntil(
      [&] { return cluster.prefill[0]->held_calls() + cluster.prefill[1]->held_calls() == 1; }));
  FakeWorker& victim = Busy(cluster.prefill);
  for (auto& worker : cluster.prefill) {
    if (worker.get() != &victim) worker->Release();
  }
  victim.Kill();
  EXPECT_TRUE(call.ReadAll().status.ok()) << call.answer().status.error_message();
  EXPECT_EQ(call.answer().text.at(0), ExpectedAnswer(0, 30));
}

TEST(RouterFailure, RetryableCodesPlanAgainOthersEndTheRequest) {
  Cluster cluster({.prefill = 1, .decode = 1});
  ASSERT_TRUE(cluster.WaitForReady());
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DATA_LOSS, grpc::StatusCode::ABORTED,
        grpc::StatusCode::CANCELLED, grpc::StatusCode::DEADLINE_EXCEEDED}) {
    cluster.decode[0]->FailAt(12, code);
    Call call(*cluster.stub, Request(40));
    EXPECT_TRUE(call.ReadAll().status.ok()) << code << call.answer().status.error_message();
    EXPECT_EQ(call.answer().text.at(0), ExpectedAnswer(0, 40));
  }
  cluster.decode[0]->FailAt(12, grpc::StatusCode::INVALID_ARGUMENT);
  Call call(*cluster.stub, Request(40));
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(call.answer().status.error_message(), HasSubstr("decode worker decode-0"));
}

TEST(RouterFailure, AWorkerThatHangsIsLeftOnceItHasBeenSilent) {
  Cluster cluster({.prefill = 1, .decode = 2, .stale_after = 2s});
  ASSERT_TRUE(cluster.WaitForReady());
  for (auto& worker : cluster.decode) worker->HoldAt(10);
  Call call(*cluster.stub, WithTiming(Request(60)));
  ASSERT_TRUE(call.ReadText(10));
  FakeWorker& victim = Busy(cluster.decode);
  for (auto& worker : cluster.decode) {
    if (worker.get() != &victim) worker->Release();
  }
  victim.SetSilent(true);
  EXPECT_TRUE(call.ReadAll().status.ok()) << call.answer().status.error_message();
  EXPECT_EQ(call.answer().text.at(0), ExpectedAnswer(0, 60));
  EXPECT_EQ(call.answer().endings[0].timing().migrations(), 1u);
  EXPECT_TRUE(WaitUntil([&] { return victim.open_calls() == 0; })) << "and told to stop";
}

TEST(RouterFailure, WithAllWorkersGoneRequestsFailAndNewWorkersHeal) {
  const TempFolder folder;
  const std::string file = folder.Write("workers", "# none yet\n");
  Cluster cluster({.prefill = 1, .decode = 1, .worker_wait = 100ms, .workers_file = file});
  Call none(*cluster.stub, Request(5));
  EXPECT_EQ(none.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(none.answer().status.error_message(), HasSubstr("no prefill worker is ready"));

  folder.Write("workers", cluster.prefill[0]->endpoint() + "\n" + cluster.decode[0]->endpoint());
  ASSERT_TRUE(cluster.WaitForReady());
  EXPECT_TRUE(Call(*cluster.stub, Request(5)).ReadAll().status.ok());

  cluster.decode[0]->Kill();
  ASSERT_TRUE(cluster.WaitForReady(false));
  Call gone(*cluster.stub, Request(5));
  EXPECT_EQ(gone.ReadAll().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(gone.answer().status.error_message(), HasSubstr("no decode worker is ready"));

  cluster.decode.push_back(StartFake(v1::WorkerState::DECODE, "decode-new"));
  folder.Write("workers", cluster.prefill[0]->endpoint() + "\n" + cluster.decode[1]->endpoint());
  ASSERT_TRUE(cluster.WaitForReady());
  Call healed(*cluster.stub, Request(25));
  EXPECT_TRUE(healed.ReadAll().status.ok()) << healed.answer().status.error_message();
  EXPECT_EQ(healed.answer().text.at(0), ExpectedAnswer(0, 25));
}

TEST(RouterFailure, ARequestWaitsForAWorkerThatComesInTime) {
  const TempFolder folder;
  const std::string file = folder.Write("workers", "");
  Cluster cluster({.worker_wait = 20s, .workers_file = file});
  Call call(*cluster.stub, Request(5));
  ASSERT_TRUE(WaitUntil([&] { return cluster.router->open_requests() == 1; }));
  folder.Write("workers", cluster.prefill[0]->endpoint() + "\n" + cluster.decode[0]->endpoint());
  EXPECT_TRUE(call.ReadAll().status.ok()) << call.answer().status.error_message();
}

}  // namespace
}  // namespace penstock
