#include "router/scaling/scale_keeper.h"

#include <iterator>
#include <string>
#include <utility>

#include "base/log/log.h"

namespace penstock {
namespace {

constexpr size_t kAllWorkers = SIZE_MAX;

ScaleOptions OptionsOf(const ScaleKeeper::Options& options) {
  ScaleOptions scale = options.scale;
  scale.may_turn = scale.may_turn && options.act && options.turn != nullptr;
  return scale;
}

void Describe(const RoleDecision& decision, v1::ScaleAdvice::Role* role) {
  role->set_replicas(decision.replicas);
  role->set_needed(decision.needed);
  role->set_work(decision.work);
  role->set_reason(kScaleReasons[static_cast<size_t>(decision.reason)]);
  role->set_why(decision.why);
}

}  // namespace

ScaleKeeper::ScaleKeeper(WorkerTable& table, ScaleMetrics& metrics, ScaleTarget* target,
                         Options options)
    : table_(table),
      options_(std::move(options)),
      metrics_(metrics),
      target_(options_.act ? *target : dry_run_),
      meter_(options_.targets),
      decider_(OptionsOf(options_)) {}

void ScaleKeeper::Observe(TimePoint now) {
  const ScaleSituation situation =
      meter_.Measure(table_.Pictures(kAllWorkers), table_.Times(), now);
  Publish(Decide(situation, now), target_.leads());
}

ScaleDecision ScaleKeeper::Decide(ScaleSituation situation, TimePoint now) {
  if (!options_.act && !dry_run_.Wanted() && situation.prefill.known && situation.decode.known) {
    // A dry run begins with the workers that are there.
    dry_run_.Want({situation.prefill.replicas, situation.decode.replicas});
  }
  const std::optional<ReplicaCounts> before = target_.Wanted();
  if (!target_.leads() || !before) return decider_.Follow(situation, now);
  situation.prefill.replicas = before->prefill;
  situation.decode.replicas = before->decode;
  ScaleDecision decision = decider_.Observe(situation, now);
  CarryOut(*before, decision);
  return decision;
}

void ScaleKeeper::CarryOut(const ReplicaCounts& before, const ScaleDecision& decision) {
  const auto change = [&](const char* role, uint32_t from, const RoleDecision& to,
                          ScaleMetrics::Role& metrics) {
    if (to.replicas == from) return;
    (to.replicas > from ? metrics.ups : metrics.downs).Increment();
    Log(LogLevel::kInfo, "scale_decided",
        {{"role", role},
         {"from", from},
         {"to", to.replicas},
         {"mode", options_.act ? "act" : "propose"},
         {"message", to.why}});
  };
  change("prefill", before.prefill, decision.prefill, metrics_.prefill);
  change("decode", before.decode, decision.decode, metrics_.decode);
  const ReplicaCounts after{decision.prefill.replicas, decision.decode.replicas};
  if (after != before) target_.Want(after);
  if (decision.turn == RoleTurn::kNone) return;
  options_.turn(
      decision.turn == RoleTurn::kToPrefill ? v1::WorkerState::PREFILL : v1::WorkerState::DECODE,
      decision.home);
}

void ScaleKeeper::Publish(const ScaleDecision& decision, bool leads) {
  metrics_.prefill.Show(decision.prefill);
  metrics_.decode.Show(decision.decode);
  metrics_.leads.Set(leads ? 1 : 0);
  v1::ScaleAdvice advice;
  advice.set_mode(options_.act ? "act" : "propose");
  advice.set_leads(leads);
  Describe(decision.prefill, advice.mutable_prefill());
  Describe(decision.decode, advice.mutable_decode());
  MutexLock lock(mutex_);
  latest_.Swap(&advice);
}

v1::ScaleAdvice ScaleKeeper::Latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

}  // namespace penstock
