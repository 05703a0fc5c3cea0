#include "base/config.h"
#include "worker/run_server.h"
#include "worker_main/worker.h"

// Prefill worker: turns prompts into KV and first tokens, and pushes the KV to a decode worker.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::PrefillConfig>(
      argc, argv,
      {.name = "penstock-prefill",
       .summary = "Turns prompts into KV and pushes it to a decode worker."});
  return static_cast<int>(penstock::RunServer<penstock::Worker>(config, "prefill"));
}
