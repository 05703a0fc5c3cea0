#include "lab/simulate/world/timed_runner.h"

#include <algorithm>
#include <chrono>

#include "lab/fake/test_model.h"
#include "lab/world/machine/scheduler.h"

namespace penstock {
namespace {

// A sequence that decodes, or the last token of a prompt, which takes as long.
bool Decodes(const SequenceStep& step) { return step.tokens.size() == 1 && step.position > 0; }

void Sleep(double ms) {
  if (ms <= 0) return;
  world::Scheduler::current()->Sleep(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms)));
}

}  // namespace

int32_t TimedRunner::vocab() const { return static_cast<int32_t>(kTestVocab); }

double TimedRunner::StepMs(const StepArgs& args) const {
  if (times_.none) return 0;
  double ms = 0;
  double sequences = 0, context = 0;
  bool prompts = false;
  for (const SequenceStep& step : args.sequences) {
    if (Decodes(step)) {
      ++sequences;
      context += step.position + 1;
      continue;
    }
    prompts = true;
    const double begin = step.position, tokens = static_cast<double>(step.tokens.size());
    ms += times_.prefill.ms_per_token * tokens;
    ms += times_.prefill.ms_per_square * ((begin + tokens) * (begin + tokens) - begin * begin);
  }
  if (prompts) ms += times_.prefill.base_ms;
  if (sequences > 0) ms += times_.decode.Ms(sequences, context);
  return ms;
}

absl::Status TimedRunner::Step(const StepArgs& args) {
  const double ms = StepMs(args);
  busy_ms_ += ms;
  sequence_ms_ += ms * static_cast<double>(std::ranges::count_if(args.sequences, Decodes));
  const bool at_once = args.layers_per_group == 0 || std::ranges::all_of(args.sequences, Decodes);
  const int32_t group = at_once ? kLayout.layers : args.layers_per_group;
  for (int32_t first = 0; first < kLayout.layers; first += group) {
    const int32_t last = std::min(first + group, kLayout.layers);
    Sleep(ms * (last - first) / kLayout.layers);
    if (args.on_layers_done) args.on_layers_done(first, last);
  }
  int64_t row = 0;
  for (const SequenceStep& step : args.sequences) {
    if (!step.wants_logits) continue;
    float* const logits = args.logits.row(row++);
    std::fill_n(logits, kTestVocab, 0.0f);
    logits[int{'a'}] = 1;
  }
  return absl::OkStatus();
}

}  // namespace penstock
