#include <signal.h>

#include "cli/client/ask.h"
#include "cli/client/client.h"
#include "cli/client/commands.h"
#include "cli/client/explanation.h"
#include "cli/client/json_text.h"
#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

double MsOf(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() / 1e6;
}

void PrintTable(const v1::Final& final) {
  const v1::Explanation& explanation = final.explanation();
  const v1::Usage& usage = final.usage();
  fmt::print("{} prompt tokens; ready: {} prefill workers, {} decode workers\n",
             explanation.prompt_tokens(), explanation.prefill_ready(), explanation.decode_ready());
  fmt::print(
      "TTFT {:.1f} ms, predicted {:.1f} ms; columns in ms, see `penstock explain --help`\n{}\n",
      MsOf(explanation.real_first_token()), MsOf(explanation.predicted_first_token()),
      ReasonOf(explanation));
  if (explanation.numerics() == "fast") {
    fmt::print("Prompts and answers are rounded by different kernels there (numerics=fast).\n");
  }
  if (usage.evicted_tokens() > 0) {
    fmt::print("{} prompt tokens kept, {} evicted.\n",
               usage.prompt_tokens() - usage.evicted_tokens(), usage.evicted_tokens());
  }
  fmt::print("Answer of {} tokens; {} of {} guesses of speculation were right.\n\n",
             usage.completion_tokens(), usage.accepted_draft_tokens(),
             usage.accepted_draft_tokens() + usage.rejected_draft_tokens());
  fmt::print("{:<16}{:<16}{:>7}{:>7}{:>9}{:>9}{:>9}{:>8}{:>9}{:>8}{:>10}{:>9}{:>14}{:>9}  {}\n",
             "prefill", "decode", "cached", "p(hit)", "queue", "prefill", "restore", "fetch",
             "transfer", "decode", "queueing", "balance", "interference", "cost ms", "verdict");
  for (const v1::ScoredPair& pair : explanation.candidates()) {
    fmt::print(
        "{:<16}{:<16}{:>7}{:>7.2f}{:>9.1f}{:>9.1f}{:>9.1f}{:>8.1f}{:>9.1f}{:>8.1f}{:>10.1f}"
        "{:>9.1f}{:>14.1f}{:>9.1f}  {}\n",
        pair.prefill_worker(), pair.decode_worker(), pair.cached_tokens(), pair.trust(),
        pair.queue_ms(), pair.prefill_ms(), pair.restore_ms(), pair.fetch_ms(), pair.transfer_ms(),
        pair.decode_ms(), pair.behind_ms(), pair.balance_ms(), pair.harm_ms(), pair.cost_ms(),
        pair.verdict());
    if (pair.fetched_tokens() > 0) {
      fmt::print("{:<16}fetches {} more tokens from {}\n", "", pair.fetched_tokens(),
                 pair.source_worker());
    }
  }
  fmt::print(
      "\nTerms are in ms; cost is their sum. p(hit): probability that the cached tokens are still\n"
      "cached. queueing, balance, interference: weighted costs for other requests: the delay of\n"
      "later prompts, uneven load, and the slowdown of running sequences.\n");
}

void PrintJson(const v1::Final& final) { fmt::print("{}\n", JsonText(final.explanation())); }

}  // namespace

int Run(const ExplainOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  v1::GenerateRequest request;
  request.set_model(options.model);
  request.set_text(options.prompt);
  request.mutable_stop()->set_max_tokens(options.max_tokens);
  SetKv(options.kv, request);
  request.mutable_output()->set_explain(true);
  InferenceClient client(options.router);
  v1::Final final;
  int signal = 0;
  const absl::Status status = client.Generate(
      request, interrupts,
      [&](const v1::GenerateResponse& response) {
        if (response.final().has_explanation()) final = response.final();
        return true;
      },
      &signal);
  if (signal != 0) return 128 + signal;
  if (!status.ok()) {
    fmt::print(stderr, "penstock explain: {}\n", Message(status));
    return static_cast<int>(ExitCodeForCall(status));
  }
  (options.json ? PrintJson : PrintTable)(final);
  return 0;
}

}  // namespace penstock
