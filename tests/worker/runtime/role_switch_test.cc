#include "worker/runtime/role_switch.h"

#include <gtest/gtest.h>

#include <future>
#include <set>
#include <vector>

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;

class FakeRole final : public WorkerRole {
 public:
  FakeRole(v1::WorkerState::Role kind, uint64_t steps)
      : kind_(kind), steps_(steps), gate_(RoleName(kind)) {}

  v1::WorkerState::Role kind() const override { return kind_; }
  grpc::Service* service() override { return nullptr; }
  RoleGate& gate() override { return gate_; }
  const Progress& progress() const override { return progress_; }
  void AddTotals(v1::WorkerState* state) const override {
    state->set_steps(state->steps() + steps_);
  }
  void DescribeLoad(v1::WorkerState* state) const override {
    state->set_running(static_cast<uint32_t>(gate_.calls()));
  }
  OpenWork open_work() const override { return {.running = gate_.calls()}; }
  void Stop() override {}
  void Beat() { progress_.Beat(); }

 private:
  const v1::WorkerState::Role kind_;
  const uint64_t steps_;
  RoleGate gate_;
  Progress progress_;
};

class RoleSwitchTest : public testing::Test {
 protected:
  absl::StatusOr<uint32_t> Turn(v1::WorkerState::Role to, Duration within = seconds(30)) {
    return Begin(to, within).get();
  }
  std::future<absl::StatusOr<uint32_t>> Begin(v1::WorkerState::Role to, Duration within) {
    const auto answer = std::make_shared<std::promise<absl::StatusOr<uint32_t>>>();
    switch_.Turn(to, within,
                 [answer](absl::StatusOr<uint32_t> epoch) { answer->set_value(std::move(epoch)); });
    return answer->get_future();
  }
  v1::WorkerState State() const {
    v1::WorkerState state;
    switch_.Describe(&state);
    return state;
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

  MetricsRegistry metrics_;
  FakeRole prefill_{kPrefill, 3};
  FakeRole decode_{kDecode, 4};
  std::atomic<int> told_{0};
  RoleSwitch switch_{{.roles = {&prefill_, &decode_},
                      .metrics = metrics_,
                      .incarnation = 77,
                      .on_turning = [this] { ++told_; }},
                     kPrefill};
};

TEST_F(RoleSwitchTest, HasTheFirstRoleInTheFirstEpoch) {
  EXPECT_EQ(State().role(), kPrefill);
  EXPECT_EQ(State().role_epoch(), 1u);
  EXPECT_EQ(State().turning_to(), v1::WorkerState::ROLE_UNSPECIFIED);
  EXPECT_TRUE(prefill_.gate().Enter({}).ok());
  EXPECT_TRUE(prefill_.gate().Enter({.epoch = 1}).ok());
  EXPECT_EQ(decode_.gate().Enter({}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Metric("penstock_worker_role", "prefill"), 1);
  EXPECT_EQ(Metric("penstock_worker_role", "decode"), 0);
}

TEST_F(RoleSwitchTest, TurnsThereAndBackUnderNewEpochs) {
  ASSERT_EQ(Turn(kDecode).value(), 2u);
  EXPECT_EQ(State().role(), kDecode);
  EXPECT_EQ(State().steps(), 7u);  // of both roles, so that it never falls
  EXPECT_FALSE(prefill_.gate().Enter({}).ok());
  ASSERT_EQ(Turn(kPrefill).value(), 3u);
  EXPECT_EQ(prefill_.gate().Enter({.epoch = 1}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(prefill_.gate().Enter({.epoch = 3}).ok());
  EXPECT_EQ(Metric("penstock_worker_role_changes_total", "turned"), 2);
  EXPECT_EQ(Metric("penstock_worker_role", "prefill"), 1);
  EXPECT_EQ(told_, 4);  // each begins and ends
}

TEST_F(RoleSwitchTest, TheRoleThatItHasIsNoTurn) {
  EXPECT_EQ(Turn(kPrefill).value(), 1u);
  EXPECT_EQ(told_, 0);
  EXPECT_EQ(Turn(v1::WorkerState::ROLE_UNSPECIFIED).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RoleSwitchTest, WaitsForCallsThatAreInside) {
  std::optional<RoleGate::Pass> pass = *prefill_.gate().Enter({});
  auto turning = Begin(kDecode, seconds(30));
  EXPECT_EQ(turning.wait_for(milliseconds(50)), std::future_status::timeout);
  EXPECT_TRUE(switch_.turning());
  EXPECT_EQ(State().turning_to(), kDecode);
  EXPECT_EQ(State().role(), kPrefill);
  EXPECT_TRUE(prefill_.gate().Enter({.epoch = 1}).ok());  // it serves all the while
  EXPECT_EQ(Turn(kDecode).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Turn(kPrefill).status().code(), absl::StatusCode::kFailedPrecondition);
  pass.reset();
  EXPECT_EQ(turning.get().value(), 2u);
}

TEST_F(RoleSwitchTest, RefusesCallsThatWerePlannedForAnotherProcess) {
  EXPECT_TRUE(prefill_.gate().Enter({.incarnation = 77, .epoch = 1}).ok());
  const auto refused = prefill_.gate().Enter({.incarnation = 78, .epoch = 1});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Turn(kDecode).ok());
  EXPECT_TRUE(decode_.gate().Enter({.incarnation = 77}).ok());
  EXPECT_FALSE(decode_.gate().Enter({.incarnation = 78}).ok());
}

TEST_F(RoleSwitchTest, KeepsItsRoleWhenTimeIsUp) {
  const RoleGate::Pass pass = *prefill_.gate().Enter({});
  const auto turned = Turn(kDecode, milliseconds(30));
  EXPECT_EQ(turned.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(State().role(), kPrefill);
  EXPECT_EQ(State().role_epoch(), 1u);
  EXPECT_FALSE(switch_.turning());
  EXPECT_TRUE(prefill_.gate().Enter({.epoch = 1}).ok());
  EXPECT_EQ(Metric("penstock_worker_role_changes_total", "kept"), 1);
}

TEST_F(RoleSwitchTest, StopGivesUpATurnAndRefusesOthers) {
  const RoleGate::Pass pass = *prefill_.gate().Enter({});
  auto turning = Begin(kDecode, seconds(60));
  switch_.Stop();
  EXPECT_EQ(turning.get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(State().role(), kPrefill);
  EXPECT_EQ(Turn(kDecode).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RoleSwitchTest, WatchesTheEngineThatWorks) {
  decode_.Beat();
  EXPECT_EQ(switch_.beats(), 0u);
  ASSERT_TRUE(Turn(kDecode).ok());
  EXPECT_EQ(switch_.beats(), 1u);
}

// Calls that come all the while are served or refused, and never by a role that the worker has not.
TEST_F(RoleSwitchTest, NoCallIsInsideARoleThatIsNotPresent) {
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::vector<std::thread> callers;
  for (FakeRole* role : {&prefill_, &decode_}) {
    callers.emplace_back([&, role] {
      FakeRole& other = role == &prefill_ ? decode_ : prefill_;
      while (!stop) {
        const auto pass = role->gate().Enter({});
        if (!pass.ok()) continue;
        ++served;
        EXPECT_EQ(other.gate().calls(), 0);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const auto turned = Turn(i % 2 == 0 ? kDecode : kPrefill);
    EXPECT_TRUE(turned.ok()) << turned.status();
    const int before = served;
    while (served == before) std::this_thread::yield();  // by the role that is present
  }
  stop = true;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace penstock
