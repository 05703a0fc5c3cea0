#include "base/config/config.h"
#include "worker/main/run_worker.h"

// Prefill worker: turns prompts into KV and first tokens, and pushes the KV to a decode worker.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::WorkerConfig>(
      argc, argv,
      {.name = "penstock-prefill",
       .summary = "Turns prompts into KV and pushes it to a decode worker."});
  return static_cast<int>(penstock::RunWorker(penstock::v1::WorkerState::PREFILL, config));
}
