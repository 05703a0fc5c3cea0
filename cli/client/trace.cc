#include <fmt/format.h>
#include <signal.h>

#include "cli/client/ask.h"
#include "cli/client/client.h"
#include "cli/client/commands.h"
#include "cli/client/json_text.h"
#include "cli/client/timeline.h"
#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

constexpr int kColumns = 60;

}  // namespace

int Run(const TraceOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_text(options.prompt);
  request.mutable_output()->set_timing(true);
  SetSampling(options.sampling, request);
  InferenceClient client(options.router);
  v1::Final last;
  int signal = 0;
  const absl::Status status = client.Generate(
      request, interrupts,
      [&](const v1::GenerateResponse& response) {
        if (response.has_final()) last = response.final();
        return true;
      },
      &signal);
  if (signal != 0) return 128 + signal;
  if (!status.ok()) {
    fmt::print(stderr, "penstock trace: {}\n", Message(status));
    return static_cast<int>(ExitCodeForCall(status));
  }
  if (options.json) {
    fmt::print("{}\n", JsonText(last));
    return 0;
  }
  fmt::print("request {}: {} prompt and {} answer tokens, {} cached\ntrace {}\n", last.request_id(),
             last.usage().prompt_tokens(), last.usage().completion_tokens(),
             last.usage().cached_tokens(), last.timing().trace_id());
  fmt::print("{}", TimelineText(last.timing(), kColumns));
  return 0;
}

}  // namespace penstock
