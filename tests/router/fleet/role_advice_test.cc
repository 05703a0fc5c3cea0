#include "router/fleet/role_advice.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

using std::chrono::seconds;

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;
constexpr v1::WorkerState::Role kNobody = v1::WorkerState::ROLE_UNSPECIFIED;

RolePool PoolOf(const std::string& name, int workers, double variable, double fixed = 0) {
  RolePool pool;
  for (int i = 0; i < workers; ++i) {
    pool.workers.push_back({.endpoint = name + ":" + std::to_string(i),
                            .worker_id = name + "-" + std::to_string(i),
                            .drain_cost = static_cast<double>(10 - i)});
  }
  pool.loads = {{"the queue", fixed, variable}, {"the memory", 0, variable / 2}};
  return pool;
}

RoleSituation Situation(int prefill, double prefill_load, int decode, double decode_load) {
  return {.prefill = PoolOf("p", prefill, prefill_load),
          .decode = PoolOf("d", decode, decode_load)};
}

TEST(RoleLoad, IsWhatPressesMostAndFallsWithWorkers) {
  RolePool pool = PoolOf("p", 2, 0.6, 0.3);
  EXPECT_DOUBLE_EQ(LoadOf(pool), 0.9);
  EXPECT_DOUBLE_EQ(LoadOf(pool, 4), 0.6);  // the fixed part stays
  EXPECT_DOUBLE_EQ(LoadOf(pool, 1), 1.5);
  EXPECT_DOUBLE_EQ(LoadOf(pool, 0), kLoadMax);
  pool.loads[1].variable = 2;
  EXPECT_DOUBLE_EQ(LoadOf(pool), 2);
}

TEST(ProposeRole, TakesFromWhoHasToSpare) {
  const auto to_prefill = ProposeRole(Situation(2, 1.5, 4, 0.3), {});
  ASSERT_TRUE(to_prefill.has_value());
  EXPECT_EQ(to_prefill->from, kDecode);
  EXPECT_EQ(to_prefill->to, kPrefill);
  EXPECT_EQ(to_prefill->worker.worker_id, "d-3");  // has the least to move
  EXPECT_NEAR(to_prefill->gain, 0.5, 1e-9);        // 1.5 on two, 1.0 on three
  EXPECT_NE(to_prefill->why.find("the queue of the 2 prefill workers is at 150 %"),
            std::string::npos)
      << to_prefill->why;
  const auto to_decode = ProposeRole(Situation(3, 0.2, 1, 2), {});
  ASSERT_TRUE(to_decode.has_value());
  EXPECT_EQ(to_decode->to, kDecode);
  EXPECT_EQ(to_decode->worker.worker_id, "p-2");
}

TEST(ProposeRole, LeavesWhatIsWellAndWhatCannotBeHelped) {
  EXPECT_FALSE(ProposeRole(Situation(2, 0.9, 2, 0.1), {}));  // within the target
  EXPECT_FALSE(ProposeRole(Situation(2, 1.5, 2, 0.6), {}));  // the other would be at 1.2
  EXPECT_FALSE(ProposeRole(Situation(2, 1.5, 1, 0), {}));    // never the last one
  EXPECT_FALSE(ProposeRole(Situation(0, 0, 1, 0), {}));
  EXPECT_FALSE(ProposeRole(Situation(0, 0, 0, 0), {}));
  RoleSituation slow = Situation(2, 0, 4, 0.1);
  slow.prefill.loads[0].fixed = 3;  // a prompt takes that long on any worker
  EXPECT_FALSE(ProposeRole(slow, {}));
}

TEST(ProposeRole, ARoleWithoutWorkersGetsOne) {
  const auto proposal = ProposeRole(Situation(2, 0.1, 0, 0), {});
  ASSERT_TRUE(proposal.has_value());
  EXPECT_EQ(proposal->to, kDecode);
  EXPECT_EQ(proposal->why, "no decode worker is ready");
}

TEST(ProposeRole, TheBarIsLowerForWhoWasShortBefore) {
  const RoleSituation situation = Situation(2, 0.9, 4, 0.1);
  EXPECT_FALSE(ProposeRole(situation, {}, kNobody));
  EXPECT_FALSE(ProposeRole(situation, {}, kDecode));
  EXPECT_TRUE(ProposeRole(situation, {}, kPrefill));
}

// After a turn by its own advice, a situation must not ask for the reverse.
TEST(ProposeRole, DoesNotTakeBackWhatItHasGiven) {
  for (int prefill = 1; prefill < 8; ++prefill) {
    for (int decode = 1; decode < 8; ++decode) {
      for (double a = 0.05; a < 4; a += 0.15) {
        for (double b = 0.05; b < 4; b += 0.15) {
          const auto proposal = ProposeRole(Situation(prefill, a, decode, b), {});
          if (!proposal) continue;
          const int to_prefill = proposal->to == kPrefill ? 1 : -1;
          const int prefills = prefill + to_prefill, decodes = decode - to_prefill;
          ASSERT_GE(prefills, 1);
          ASSERT_GE(decodes, 1);
          const auto next = ProposeRole(
              Situation(prefills, a * prefill / prefills, decodes, b * decode / decodes), {});
          ASSERT_TRUE(!next || next->to == proposal->to)
              << prefill << " at " << a << ", " << decode << " at " << b;
        }
      }
    }
  }
}

class RoleAdvisorTest : public testing::Test {
 protected:
  // Observes the situation every second. True when there is a proposal at the end.
  bool Observe(const RoleSituation& situation, int for_seconds) {
    for (int i = 0; i < for_seconds; ++i) {
      now_ += seconds(1);
      proposal_ = advisor_.Observe(situation, now_);
    }
    return proposal_.has_value();
  }

  RoleAdvisor advisor_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::optional<RoleProposal> proposal_;
  const RoleSituation busy_ = Situation(2, 2, 4, 0.3);
  const RoleSituation calm_ = Situation(2, 0.2, 4, 0.3);
};

TEST_F(RoleAdvisorTest, SpeaksOfWhatLasts) {
  EXPECT_FALSE(Observe(busy_, 20));
  EXPECT_TRUE(Observe(busy_, 1));
  EXPECT_EQ(proposal_->to, kPrefill);
  EXPECT_NEAR(advisor_.prefill_load(), 2, 1e-6);
  EXPECT_FALSE(Observe(calm_, 60));
}

TEST_F(RoleAdvisorTest, ABurstIsNoReason) {
  EXPECT_FALSE(Observe(calm_, 60));
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Observe(busy_, 3));
    EXPECT_FALSE(Observe(calm_, 12));
  }
}

TEST_F(RoleAdvisorTest, RestsAfterAChange) {
  ASSERT_TRUE(Observe(busy_, 30));
  RoleSituation turning = busy_;
  turning.turning = true;
  EXPECT_FALSE(Observe(turning, 1));
  RoleSituation changed = Situation(3, 1.6, 3, 0.2);
  changed.changes = 1;
  EXPECT_FALSE(Observe(changed, 139));
  EXPECT_TRUE(Observe(changed, 3));
  EXPECT_EQ(proposal_->to, kPrefill);
  changed.changes = 2;  // somebody else has turned one
  EXPECT_FALSE(Observe(changed, 100));
}

}  // namespace
}  // namespace penstock
