#include "base/config.h"
#include "worker/run_server.h"
#include "worker_main/worker.h"

// Decode worker: receives prefilled KV over the wire and streams tokens.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::DecodeConfig>(
      argc, argv,
      {.name = "penstock-decode", .summary = "Receives prefilled KV and streams tokens."});
  return static_cast<int>(penstock::RunServer<penstock::Worker>(config, "decode"));
}
