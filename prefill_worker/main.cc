#include "base/config.h"
#include "prefill_worker/prefill_worker.h"
#include "worker/run_server.h"

// Prefill worker: turns prompts into KV and first tokens, and pushes the KV to a decode worker.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::PrefillConfig>(
      argc, argv,
      {.name = "penstock-prefill",
       .summary = "Turns prompts into KV and pushes it to a decode worker."});
  return static_cast<int>(penstock::RunServer<penstock::PrefillWorker>(config, "prefill"));
}
