#include "cli/client/ask.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/client/client.h"
#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

const SteadyClock kClock;

// False when nobody reads any more.
bool Write(std::string_view text) {
  fwrite(text.data(), 1, text.size(), stdout);
  return fflush(stdout) == 0 && ferror(stdout) == 0;
}

bool WriteResponse(const v1::GenerateResponse& response, const Answer& answer,
                   const AskOutput& output) {
  if (output.json) return Write(ResponseJson(response, answer, output.stats) + "\n");
  const bool streamed = response.has_chunk() && response.chunk().index() == 0;
  return !streamed || Write(response.chunk().text());
}

void WriteRest(const Asked& asked, const AskOutput& output) {
  if (!output.json) {
    if (asked.answer.choices() > 0) Write("\n");
    for (size_t choice = 1; choice < asked.answer.choices(); ++choice) {
      Write(fmt::format("\n--- {} ---\n{}\n", choice + 1, asked.answer.text(choice)));
    }
    if (output.stats && asked.answer.complete()) fmt::print(stderr, "{}", StatsText(asked.answer));
  }
  if (asked.status.ok() || asked.signal != 0) return;
  if (output.json) {
    Write(ErrorJson(absl::StatusCodeToString(asked.status.code()), Message(asked.status)) + "\n");
  }
  fmt::print(stderr, "penstock: {}\n", Message(asked.status));
}

}  // namespace

int Asked::exit_code() const {
  return signal != 0 ? 128 + signal : static_cast<int>(ExitCodeForCall(status));
}

void SetKv(const KvPolicyOptions& options, v1::GenerateRequest& request) {
  request.set_kv_policy(options.policy);
  request.set_keep_marker(options.keep_marker);
}

void SetSampling(const SamplingOptions& options, v1::GenerateRequest& request) {
  v1::SamplingParams& sampling = *request.mutable_sampling();
  if (options.temperature) sampling.set_temperature(*options.temperature);
  if (options.top_p) sampling.set_top_p(*options.top_p);
  if (options.top_k) sampling.set_top_k(*options.top_k);
  if (options.min_p) sampling.set_min_p(*options.min_p);
  if (options.seed) sampling.set_seed(*options.seed);
  v1::StopConditions& stop = *request.mutable_stop();
  if (options.max_tokens) stop.set_max_tokens(*options.max_tokens);
  for (const std::string& text : options.stop) stop.add_stop(text);
  SetKv(options.kv, request);
}

Asked Ask(InferenceClient& client, Interrupts& interrupts, v1::GenerateRequest request,
          const AskOutput& output) {
  request.mutable_output()->set_timing(true);
  Asked asked = {.status = {}, .answer = Answer(kClock)};
  asked.status = client.Generate(
      request, interrupts,
      [&](const v1::GenerateResponse& response) {
        asked.answer.Add(response);
        return WriteResponse(response, asked.answer, output);
      },
      &asked.signal);
  if (asked.status.ok() && ferror(stdout) != 0) {
    asked.status = Internal("standard output is closed");
    return asked;
  }
  WriteRest(asked, output);
  return asked;
}

}  // namespace penstock
