// The line in which new requests stand while all workers are full.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/router/service/cluster.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// A cluster with one prefill worker that reports to be full until SetFull(false).
class RouterQueueTest : public ::testing::Test {
 protected:
  explicit RouterQueueTest(const ClusterOptions& options = {.queue_wait = 20s})
      : cluster_(options) {
    EXPECT_TRUE(cluster_.WaitForReady());
    SetFull(true);
  }

  // Returns when the router has seen the state.
  void SetFull(bool full) {
    cluster_.prefill[0]->SetWaiting(full ? kMaxWaitingPerWorker : 0);
    EXPECT_TRUE(WaitUntil([&] {
      const PlacementRequest probe{.need = {.prompt_tokens = 1, .answer_tokens = 1}};
      return absl::IsResourceExhausted(cluster_.router->fleet().table().Place(probe).status()) ==
             full;
    }));
  }

  bool WaitFor(size_t waiting) {
    return WaitUntil([&] { return cluster_.router->fleet().order().waiting() == waiting; });
  }

  // True when the admission queue is empty and no request is open.
  bool AllIsOver() {
    return WaitFor(0) && WaitUntil([&] { return cluster_.router->open_requests() == 0; });
  }

  Cluster cluster_;
};

TEST_F(RouterQueueTest, EveryoneInLineIsServedOnceThereIsRoom) {
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(std::make_unique<Call>(*cluster_.stub, Request(5)));
  }
  ASSERT_TRUE(WaitFor(20));
  EXPECT_EQ(cluster_.prefill[0]->calls(), 0);
  SetFull(false);
  for (const auto& call : calls) {
    EXPECT_TRUE(call->ReadAll().status.ok()) << call->answer().status.error_message();
    EXPECT_EQ(call->answer().text.at(0), ExpectedAnswer(0, 5));
  }
  EXPECT_TRUE(AllIsOver());
}

TEST_F(RouterQueueTest, AClientThatLeavesTheLineLeavesNothing) {
  Call leaves(*cluster_.stub, Request(5));
  ASSERT_TRUE(WaitFor(1));
  Call kept(*cluster_.stub, Request(5));
  ASSERT_TRUE(WaitFor(2));
  leaves.context().TryCancel();
  EXPECT_EQ(leaves.ReadAll().status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor(1));
  SetFull(false);  // it stood behind the other one, and is not held up
  EXPECT_TRUE(kept.ReadAll().status.ok());
  EXPECT_TRUE(AllIsOver());
}

TEST_F(RouterQueueTest, ADeadlineEndsTheWait) {
  Call call(*cluster_.stub, Request(5), std::chrono::system_clock::now() + 300ms);
  EXPECT_EQ(call.ReadAll().status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(AllIsOver());
}

TEST_F(RouterQueueTest, ADrainingRouterCancelsWhoStillWaits) {
  Call call(*cluster_.stub, Request(5));
  ASSERT_TRUE(WaitFor(1));
  cluster_.router->Drain(200ms);
  EXPECT_FALSE(call.ReadAll().status.ok());
  EXPECT_TRUE(AllIsOver());
}

class ShortQueueTest : public RouterQueueTest {
 protected:
  ShortQueueTest() : RouterQueueTest({.queue_wait = 3s, .queued_max = 2}) {}
};

TEST_F(ShortQueueTest, PatienceAndLengthAreBounded) {
  Call first(*cluster_.stub, Request(5));
  Call second(*cluster_.stub, Request(5));
  ASSERT_TRUE(WaitFor(2));
  Call third(*cluster_.stub, Request(5));
  EXPECT_THAT(third.ReadAll().status.error_message(), HasSubstr("2 requests are waiting"));
  EXPECT_EQ(third.answer().status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (Call* call : {&first, &second}) {
    EXPECT_EQ(call->ReadAll().status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_TRUE(AllIsOver());
  EXPECT_EQ(cluster_.prefill[0]->calls(), 0);
}

}  // namespace
}  // namespace penstock
