#include "router/scaling/scale_keeper.h"

#include <gtest/gtest.h>

#include "tests/support/captured_output.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;

// A cluster manager that does at once what it is told.
class Manager final : public ScaleTarget {
 public:
  bool leads() override { return leader; }
  std::optional<ReplicaCounts> Wanted() override { return leader ? counts : std::nullopt; }
  void Want(const ReplicaCounts& wanted) override { counts = wanted; }

  bool leader = true;
  std::optional<ReplicaCounts> counts = ReplicaCounts{2, 2};
};

// Workers whose states a test writes: how busy they are, and what runs on them.
class ScaleKeeperTest : public testing::Test {
 protected:
  struct Role {
    uint32_t workers = 2;
    double busy = 0;  // share of the time, of each
    uint32_t running = 0;
    uint64_t blocks_used = 0;
    uint64_t waiting_tokens = 0;
  };

  void SetUp() override {
    Publish();
    LearnTimes();
  }
  std::unique_ptr<ScaleKeeper> Keeper(bool act = true) {
    ScaleKeeper::Options options{.act = act};
    options.scale.prefill.max = options.scale.decode.max = 50;
    options.scale.may_turn = may_turn_;
    options.turn = [this](v1::WorkerState::Role to, bool home) {
      ++turns_;
      turned_to_ = to;
      home_ = home;
    };
    return std::make_unique<ScaleKeeper>(*table_, metrics_, &manager_, options);
  }
  void Run(ScaleKeeper& keeper, Duration time) {
    for (Duration done = 0s; done < time; done += 1s) {
      clock_.Advance(1s);
      Publish();
      keeper.Observe(clock_.Now());
    }
  }
  void Publish() {
    seconds_ += 1;
    for (uint32_t i = 0; i < prefill_.workers; ++i) Publish("p", i, kPrefill, prefill_);
    for (uint32_t i = 0; i < decode_.workers; ++i) Publish("d", i, kDecode, decode_);
  }
  void Publish(const std::string& name, uint32_t number, v1::WorkerState::Role role,
               const Role& load) {
    const std::string endpoint = name + ":" + std::to_string(number);
    if (joined_.insert(endpoint).second) {
      table_->Add(endpoint, nullptr);
      table_->OnWatchStarted(endpoint);
    }
    v1::WorkerState state;
    state.set_worker_id(endpoint);
    state.set_incarnation(1);
    state.set_role(role);
    state.set_role_epoch(1);
    state.set_phase(v1::WorkerState::READY);
    state.set_block_tokens(16);
    state.set_kv_blocks_total(1000);
    state.set_kv_blocks_used(load.blocks_used);
    state.set_running(load.running);
    state.set_waiting_tokens(load.waiting_tokens);
    // A step of 10 ms and 1 ms a sequence; the time in steps grows with the share of it.
    busy_us_[endpoint] += load.busy * 1e6;
    state.set_busy_us(static_cast<uint64_t>(busy_us_[endpoint]));
    state.set_steps(static_cast<uint64_t>(seconds_ * 1000 / (10 + load.running)));
    table_->OnState(endpoint, state);
  }
  // The router observes prompts of 100 ms, and steps.
  void LearnTimes() {
    decode_.running = 10;
    decode_.blocks_used = 100;
    for (int i = 0; i < 12; ++i) {
      clock_.Advance(1s);
      Publish();
      PlacementRequest request{.need = {.prompt_tokens = 500, .answer_tokens = 10}};
      auto placed = table_->Place(request);
      ASSERT_TRUE(placed.ok()) << placed.status();
      v1::FirstTokens first;
      first.set_compute_ms(100);
      first.set_cached_tokens(0);
      table_->OnFirstTokens(*placed->forecast, first);
    }
  }

  ManualClock clock_;
  MetricsRegistry registry_;
  ScaleMetrics metrics_{registry_};
  std::shared_ptr<WorkerTable> table_ = std::make_shared<WorkerTable>(clock_, 3s);
  Manager manager_;
  Role prefill_, decode_;
  std::set<std::string> joined_;
  std::map<std::string, double> busy_us_;
  double seconds_ = 0;
  bool may_turn_ = false;
  int turns_ = 0;
  v1::WorkerState::Role turned_to_ = v1::WorkerState::ROLE_UNSPECIFIED;
  bool home_ = false;
};

TEST_F(ScaleKeeperTest, MeasuresBusyWorkersAndAddsMore) {
  const auto keeper = Keeper();
  const CapturedOutput output(STDOUT_FILENO);
  prefill_.busy = 0.95;
  Run(*keeper, 60s);
  EXPECT_NEAR(metrics_.prefill.work.Value(), 1.9, 0.05);
  EXPECT_EQ(manager_.counts->prefill, 3u);
  EXPECT_EQ(manager_.counts->decode, 2u);
  EXPECT_EQ(metrics_.prefill.replicas.Value(), 3);
  EXPECT_EQ(metrics_.prefill.ups.Value(), 1);
  EXPECT_EQ(metrics_.prefill.reasons[static_cast<size_t>(ScaleReason::kEnough)]->Value(), 1);
  EXPECT_EQ(metrics_.leads.Value(), 1);
  EXPECT_EQ(output.Count("scale_decided role=prefill from=2 to=3 mode=act"), 1) << output.text();
  EXPECT_EQ(keeper->Latest().prefill().replicas(), 3u);
  EXPECT_NE(keeper->Latest().prefill().why().find("workers busy"), std::string::npos);
}

TEST_F(ScaleKeeperTest, CountsWaitingWorkAndFullMemory) {
  const auto keeper = Keeper();
  prefill_.busy = 1;
  prefill_.waiting_tokens = 600'000;  // each: two minutes of work
  decode_.running = 60;
  decode_.blocks_used = 990;
  Run(*keeper, 120s);
  EXPECT_GE(manager_.counts->prefill, 6u);
  EXPECT_GE(metrics_.decode.work.Value(), 2.0);
  EXPECT_GE(manager_.counts->decode, 3u);
}

TEST_F(ScaleKeeperTest, ADryRunTouchesNothing) {
  const auto keeper = Keeper(/*act=*/false);
  prefill_.busy = 0.95;
  Run(*keeper, 60s);
  EXPECT_EQ(manager_.counts, (ReplicaCounts{2, 2}));
  EXPECT_EQ(metrics_.prefill.replicas.Value(), 3);
  EXPECT_EQ(keeper->Latest().mode(), "propose");
}

TEST_F(ScaleKeeperTest, AFollowerLearnsAndDecidesNothing) {
  const auto keeper = Keeper();
  manager_.leader = false;
  prefill_.busy = 0.95;
  Run(*keeper, 300s);
  EXPECT_EQ(manager_.counts, (ReplicaCounts{2, 2}));
  EXPECT_EQ(metrics_.leads.Value(), 0);
  EXPECT_FALSE(keeper->Latest().leads());
  manager_.leader = true;
  Run(*keeper, 2s);  // it knows the load already
  EXPECT_EQ(manager_.counts->prefill, 3u);
}

TEST_F(ScaleKeeperTest, ADrainingWorkerIsNoSupplyAndASpareOneChangesItsRole) {
  may_turn_ = true;
  decode_.workers = 5;
  manager_.counts = {2, 5};
  const auto keeper = Keeper();
  prefill_.busy = 0.95;
  Run(*keeper, 60s);
  EXPECT_EQ(turns_, 1);
  EXPECT_EQ(turned_to_, kPrefill);
  EXPECT_FALSE(home_);
  EXPECT_EQ(manager_.counts, (ReplicaCounts{2, 5}));
}

TEST(LoadMeter, ARestartedWorkerAndAnotherRoleAreNoLoad) {
  LoadMeter meter({});
  const ServiceTimes times{.prefill_known = true, .prefill_ms = 100, .step_known = true};
  WorkerPicture worker{.endpoint = "p", .status = "ready"};
  worker.state.set_role(kPrefill);
  worker.state.set_incarnation(1);
  worker.state.set_role_epoch(1);
  worker.state.set_busy_us(5'000'000);
  TimePoint now(1h);
  const auto work = [&] { return meter.Measure({worker}, times, now += 1s).prefill.load.work; };
  EXPECT_EQ(work(), 0);  // nothing to compare with
  worker.state.set_busy_us(5'500'000);
  EXPECT_NEAR(work(), 0.5, 1e-9);
  worker.state.set_incarnation(2);
  worker.state.set_busy_us(100);
  EXPECT_EQ(work(), 0);
  worker.state.set_role_epoch(3);
  worker.state.set_busy_us(900'000);
  EXPECT_EQ(work(), 0);
  worker.status = "draining";
  EXPECT_FALSE(meter.Measure({worker}, times, now += 1s).prefill.known);
}

TEST(LoadMeter, AVisitorCountsForTheReplicasThatItCameFrom) {
  LoadMeter meter({});
  WorkerPicture home{.endpoint = "p", .status = "ready"};
  home.state.set_role(kPrefill);
  home.state.set_role_epoch(3);
  WorkerPicture visitor = home;
  visitor.endpoint = "d";
  visitor.state.set_role_epoch(2);
  const ScaleSituation situation = meter.Measure({home, visitor}, {}, TimePoint(1h));
  EXPECT_EQ(situation.prefill.replicas, 1u);
  EXPECT_EQ(situation.prefill.visitors, 1u);
  EXPECT_EQ(situation.decode.replicas, 1u);
}

}  // namespace
}  // namespace penstock
