#include <signal.h>

#include "base/lifecycle.h"
#include "cli/client/ask.h"
#include "cli/client/client.h"
#include "cli/client/commands.h"
#include "cli/client/line_reader.h"
#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

constexpr size_t kPromptMax = size_t{16} << 20;

absl::StatusOr<std::string> ReadPrompt(const std::string& prompt, Interrupts& interrupts,
                                       int* signal) {
  std::string text = prompt;
  if (prompt == "-") {
    ASSIGN_OR_RETURN(text, ReadStandardInput(interrupts, kPromptMax, signal));
    if (text.ends_with('\n')) text.pop_back();
  }
  if (!IsUtf8(text)) return InvalidArgument("the prompt is not UTF-8");
  return text;
}

}  // namespace

int Run(const GenerateOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  int signal = 0;
  const absl::StatusOr<std::string> prompt = ReadPrompt(options.prompt, interrupts, &signal);
  if (signal != 0) return 128 + signal;
  if (!prompt.ok()) {
    fmt::print(stderr, "penstock: {}\n", Message(prompt.status()));
    return static_cast<int>(ExitCode::kBadData);
  }
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_text(*prompt);
  SetSampling(options.sampling, request);
  if (options.choices != 1) request.mutable_sampling()->set_n(options.choices);
  InferenceClient client(options.router);
  return Ask(client, interrupts, std::move(request), {.json = options.json, .stats = options.stats})
      .exit_code();
}

}  // namespace penstock
