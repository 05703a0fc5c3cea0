#include "tests/e2e/cluster/disturbance.h"

#include "base/check.h"

namespace penstock {
namespace {

constexpr int kTurns = 10;
constexpr std::chrono::seconds kEndPatience(30);

}  // namespace

TestAnswer AskDisturbed(
    Cluster& cluster, const Disturbance& disturbance,
    const std::function<TestAnswer(const std::function<void(const TestAnswer&)>&)>& ask) {
  for (int turn = 1;; ++turn) {
    WorkerProcess* worker = nullptr;
    TestAnswer answer = ask([&](const TestAnswer& so_far) {
      if (worker != nullptr || so_far.tokens[0].size() < disturbance.tokens) return;
      worker = cluster.RunningDecoder();
      if (worker != nullptr) worker->process.Signal(disturbance.signal);
    });
    const bool disturbed = !answer.status.ok() || answer.timing.migrations() > 0;
    if (disturbed || disturbance.may_pass) return answer;
    PENSTOCK_CHECK(turn < kTurns, "(the signal came too late)\n" + cluster.Logs());
    if (worker == nullptr) continue;
    PENSTOCK_CHECK(worker->process.Wait(kEndPatience).has_value(), "\n" + cluster.Logs());
    cluster.Restart(*worker);
  }
}

}  // namespace penstock
