#include "tests/e2e/cluster/disturbance.h"

namespace penstock {

void Disturbance::operator()(const TestAnswer& so_far) {
  if (happened_ || so_far.tokens[0].size() < tokens_) return;
  for (WorkerProcess& worker : cluster_.decode()) {
    const auto state = worker.State();
    if (!state.has_value() || state->running() == 0) continue;
    worker.process.Signal(signal_);
    happened_ = true;
    return;
  }
}

}  // namespace penstock
