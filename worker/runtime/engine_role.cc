#include "worker/runtime/engine_role.h"

#include <string>

namespace penstock {

EngineRole::EngineRole(WorkerRuntime& runtime, v1::WorkerState::Role kind)
    : sender_(runtime.sender()),
      runner_(*runtime.host().runner, runtime.clock(), progress_,
              StepMetrics(runtime.metrics(), std::string(RoleName(kind)))),
      gate_(RoleName(kind)),
      kind_(kind) {}

void EngineRole::AddTotals(v1::WorkerState* state) const {
  state->set_tokens(state->tokens() + runner_.tokens());
  state->set_busy_us(state->busy_us() + runner_.busy_us());
  state->set_steps(state->steps() + static_cast<uint64_t>(steps()));
}

void EngineRole::DescribeLoad(v1::WorkerState* state) const {
  const OpenWork open = open_work();
  state->set_running(static_cast<uint32_t>(open.running));
  state->set_handoffs(static_cast<uint32_t>(open.handoffs));
}

}  // namespace penstock
