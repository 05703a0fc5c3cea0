#include "base/config.h"
#include "decode_worker/decode_worker.h"
#include "worker/run_server.h"

// Decode worker: receives prefilled KV over the wire and streams tokens.
int main(int argc, char** argv) {
  penstock::BlockShutdownSignals();
  const auto config = penstock::LoadConfigOrExit<penstock::v1::DecodeConfig>(
      argc, argv,
      {.name = "penstock-decode", .summary = "Receives prefilled KV and streams tokens."});
  return static_cast<int>(penstock::RunServer<penstock::DecodeWorker>(config, "decode"));
}
