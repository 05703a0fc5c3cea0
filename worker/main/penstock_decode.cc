#include "base/config/config.h"
#include "worker/main/run_worker.h"

// Decode worker: receives prefilled KV over the wire and streams tokens.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::WorkerConfig>(
      argc, argv,
      {.name = "penstock-decode",
       .summary = "Receives prefilled KV and streams tokens.",
       .defaults = {{"listen", "127.0.0.1:8092"}}});
  return static_cast<int>(penstock::RunWorker(penstock::v1::WorkerState::DECODE, config));
}
