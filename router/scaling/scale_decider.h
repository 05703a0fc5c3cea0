#pragma once

#include <cstdint>
#include <string>

#include "router/scaling/role_scaler.h"

// Room router/scaling: the number of workers of each role. The decision is pure; ScaleKeeper
// measures the load and publishes the decision, and a ScaleTarget carries it out. It may not know
// Kubernetes, sessions or client requests.
namespace penstock {

// One role as it is now. A replica belongs to the role that it starts in; a visitor is a worker of
// the other role's replicas that has changed to this role.
struct RoleFleet {
  bool known = false;  // false: no ready worker reports its load
  QueueLoad load;
  uint32_t replicas = 0;  // that are wanted, started or not
  uint32_t visitors = 0;
};

struct ScaleSituation {
  RoleFleet prefill;
  RoleFleet decode;
  bool turning = false;  // a worker is changing its role
};

struct ScaleBounds {
  uint32_t min = 1;
  uint32_t max = 8;
};

struct ScaleOptions {
  ScalePolicy policy;
  ScaleBounds prefill;
  ScaleBounds decode;
  bool may_turn = false;  // the decision may change workers' roles
  Duration turn_cooldown = std::chrono::seconds(120);
};
// The same with averages and waiting times that are shorter by `factor` >= 1, for tests of whole
// clusters. The time that a worker takes to start is no choice, and stays.
ScaleOptions SpedUp(ScaleOptions options, uint32_t factor);

enum class ScaleReason {
  kUnknown,  // the load cannot be measured
  kEnough,   // the workers that are there are needed, and are enough
  kShort,    // workers are missing
  kSpare,    // a worker is not needed
  kLimited,  // workers are missing, and the bounds or the other role do not permit more
  kTurning,  // a worker changes its role, or has just done so
};
inline constexpr const char* kScaleReasons[] = {"unknown", "enough",  "short",
                                                "spare",   "limited", "turning"};

// The workers that one role should have.
struct RoleDecision {
  uint32_t replicas = 0;
  uint32_t needed = 0;  // of its role, visitors included
  double work = 0;      // workers that the load keeps busy
  ScaleReason reason = ScaleReason::kUnknown;
  std::string why;  // one sentence
};

enum class RoleTurn { kNone, kToPrefill, kToDecode };

struct ScaleDecision {
  RoleDecision prefill;
  RoleDecision decode;
  RoleTurn turn = RoleTurn::kNone;  // one worker should change to this role
  bool home = false;                // a visitor, which returns to the role of its replicas
};

// Decides both the replicas and the role changes, so that the two cannot act against each other:
//   * A role that lacks workers gets one of the other role, if that has one to spare; else
//   replicas.
//   * A role with a worker to spare sends a visitor home before it loses a replica, so that the
//     replica that ends has the role of its Deployment.
//   * While a worker changes its role, and shortly after, no other change is made.
// No clock and no I/O; one thread.
class ScaleDecider {
 public:
  explicit ScaleDecider(const ScaleOptions& options)
      : options_(options), prefill_(options.policy), decode_(options.policy) {}

  // `now` must not decrease. The caller carries the decision out before the next call.
  ScaleDecision Observe(const ScaleSituation& situation, TimePoint now);
  // Only learns the load, because another router decides.
  ScaleDecision Follow(const ScaleSituation& situation, TimePoint now);

 private:
  struct Side {
    RoleScaler& scaler;
    const RoleFleet& fleet;
    const RoleFleet& other;
    const ScaleBounds bounds;
    RoleDecision& decision;
    uint32_t supply() const;
  };
  Side PrefillOf(const ScaleSituation& situation, ScaleDecision& decision);
  Side DecodeOf(const ScaleSituation& situation, ScaleDecision& decision);
  static void Measure(const Side& side, TimePoint now);
  // The other role's worker that `to` may get instead of a replica.
  enum class Donor { kNone, kSoon, kNow };
  Donor DonorFor(const Side& to, const Side& from, TimePoint now) const;
  void Turn(const Side& to, const Side& from, TimePoint now);
  bool SendHome(const Side& from, TimePoint now);
  static void Resize(const Side& side, TimePoint now);

  const ScaleOptions options_;
  RoleScaler prefill_;
  RoleScaler decode_;
  TimePoint next_change_{};  // after a role change
};

}  // namespace penstock
