#include "router/fleet/role_keeper.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

// Two decode workers at one address, which record the calls to them.
class Worker final : public v1::WorkerAdmin::Service {
 public:
  grpc::Status SetRole(grpc::ServerContext* context, const v1::SetRoleRequest* request,
                       v1::RoleSet*) override {
    asked_to_ = request->role();
    ++asked_;
    while (hold_ && !context->IsCancelled()) std::this_thread::yield();
    return refuse_ ? grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "it turns already")
                   : grpc::Status::OK;
  }

  std::atomic<int> asked_{0};
  std::atomic<int> asked_to_{0};
  std::atomic<bool> hold_{false};
  std::atomic<bool> refuse_{false};
};

class RoleKeeperTest : public testing::Test {
 protected:
  void SetUp() override {
    auto server = RpcServer::Start({.listen = "127.0.0.1:0", .services = {&worker_}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Join("p:1", v1::WorkerState::PREFILL, 0);
    Join("d:1", v1::WorkerState::DECODE, 30);
    Join("d:2", v1::WorkerState::DECODE, 20);
  }
  void Join(const std::string& endpoint, v1::WorkerState::Role role, uint64_t used) {
    const auto credentials = grpc::InsecureChannelCredentials();
    table_->Add(endpoint, grpc::CreateChannel(server_->endpoint(), credentials));
    table_->OnWatchStarted(endpoint);
    Publish(endpoint, role, used);
  }
  void Publish(const std::string& endpoint, v1::WorkerState::Role role, uint64_t used,
               uint64_t waiting_tokens = 0, uint32_t role_epoch = 1) {
    v1::WorkerState state;
    state.set_worker_id(endpoint);
    state.set_incarnation(1);
    state.set_role(role);
    state.set_role_epoch(role_epoch);
    state.set_phase(v1::WorkerState::READY);
    state.set_block_tokens(16);
    state.set_kv_blocks_total(1000);
    state.set_kv_blocks_used(used);
    state.set_waiting_tokens(waiting_tokens);
    table_->OnState(endpoint, state);
  }
  void Overload() { Publish("p:1", v1::WorkerState::PREFILL, 0, 1'000'000); }
  std::unique_ptr<RoleKeeper> Keeper(bool act) {
    return std::make_unique<RoleKeeper>(
        *table_, metrics_,
        RoleKeeper::Options{.act = act,
                            .targets = {},
                            .policy = {.confirm_for = 0s, .cooldown = 60s, .smoothing = 1ms}});
  }
  double Metric(const std::string& name, const std::string& label) const {
    for (const auto& family : metrics_.Collect()) {
      if (family.name != name) continue;
      for (const auto& metric : family.metric) {
        if (metric.label[0].value == label) return metric.gauge.value + metric.counter.value;
      }
    }
    return -1;
  }

  ManualClock clock_;
  MetricsRegistry metrics_;
  std::shared_ptr<WorkerTable> table_ = std::make_shared<WorkerTable>(clock_, 3s);
  Worker worker_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(RoleKeeperTest, SaysWhoShouldTurnAndLeavesItAtThat) {
  const auto keeper = Keeper(false);
  keeper->Observe(clock_.Now());
  EXPECT_EQ(keeper->Latest().mode(), "propose");
  EXPECT_EQ(keeper->Latest().worker(), "");
  Overload();
  clock_.Advance(1s);
  keeper->Observe(clock_.Now());
  const v1::RoleAdvice advice = keeper->Latest();
  EXPECT_EQ(advice.worker(), "d:2");  // holds less
  EXPECT_EQ(advice.to(), v1::WorkerState::PREFILL);
  EXPECT_GT(advice.prefill_load(), 1);
  EXPECT_FALSE(advice.why().empty());
  EXPECT_EQ(Metric("penstock_router_role_advice", "prefill"), 1);
  EXPECT_GT(Metric("penstock_router_role_load", "prefill"), 1);
  Publish("p:1", v1::WorkerState::PREFILL, 0);
  clock_.Advance(1s);
  keeper->Observe(clock_.Now());
  EXPECT_EQ(keeper->Latest().worker(), "");
  EXPECT_EQ(Metric("penstock_router_role_advice", "prefill"), 0);
  EXPECT_EQ(worker_.asked_, 0);
}

TEST_F(RoleKeeperTest, TurnsTheWorkerWhereItIsToAct) {
  worker_.hold_ = true;
  const auto keeper = Keeper(true);
  Overload();
  for (int i = 0; i < 5; ++i) {  // one at a time
    clock_.Advance(100ms);
    keeper->Observe(clock_.Now());
  }
  ASSERT_TRUE(WaitUntil([&] { return worker_.asked_ == 1; }));
  EXPECT_EQ(worker_.asked_to_, v1::WorkerState::PREFILL);
  worker_.hold_ = false;
  EXPECT_TRUE(WaitUntil([&] { return Metric("penstock_router_role_turns_total", "turned") == 1; }));
}

// Autoscaling decides, and the keeper knows which worker.
TEST_F(RoleKeeperTest, TurnsAVisitorOrAWorkerAtHomeAsItIsTold) {
  const auto keeper = Keeper(false);
  keeper->Turn(v1::WorkerState::DECODE, false);  // the last prefill worker stays
  keeper->Turn(v1::WorkerState::PREFILL, true);  // no decode worker is a visitor
  EXPECT_EQ(worker_.asked_, 0);
  keeper->Turn(v1::WorkerState::PREFILL, false);
  ASSERT_TRUE(WaitUntil([&] { return worker_.asked_ == 1; }));
  EXPECT_EQ(worker_.asked_to_, v1::WorkerState::PREFILL);
  ASSERT_TRUE(WaitUntil([&] { return Metric("penstock_router_role_turns_total", "turned") == 1; }));
  Publish("d:1", v1::WorkerState::DECODE, 30, 0, /*role_epoch=*/2);
  keeper->Turn(v1::WorkerState::PREFILL, true);
  EXPECT_TRUE(WaitUntil([&] { return worker_.asked_ == 2; }));
}

TEST_F(RoleKeeperTest, ARefusalIsCounted) {
  worker_.refuse_ = true;
  const auto keeper = Keeper(true);
  Overload();
  clock_.Advance(1s);
  keeper->Observe(clock_.Now());
  EXPECT_TRUE(WaitUntil([&] { return Metric("penstock_router_role_turns_total", "failed") == 1; }));
}

TEST_F(RoleKeeperTest, DoesNotWaitForAWorkerWhenItEnds) {
  worker_.hold_ = true;
  auto keeper = Keeper(true);
  Overload();
  clock_.Advance(1s);
  keeper->Observe(clock_.Now());
  ASSERT_TRUE(WaitUntil([&] { return worker_.asked_ == 1; }));
  keeper.reset();
  EXPECT_EQ(Metric("penstock_router_role_turns_total", "failed"), 1);
}

}  // namespace
}  // namespace penstock
