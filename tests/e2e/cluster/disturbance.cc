#include "tests/e2e/cluster/disturbance.h"

namespace penstock {

void Disturbance::operator()(const TestAnswer& so_far) {
  if (happened_ || so_far.tokens[0].size() < tokens_) return;
  WorkerProcess* const worker = cluster_.RunningDecoder();
  if (worker == nullptr) return;
  worker->process.Signal(signal_);
  happened_ = true;
}

}  // namespace penstock
