#include "decode_worker/speculation/draft_model.h"

#include <algorithm>

#include "model/sampler/token_draw.h"

namespace penstock {
namespace {

constexpr double kForget = 0.9;
constexpr double kTokensInStep = 16;  // that are assumed to take the time of one sequence's step

double SecondsSince(TimePoint begun, const Clock& clock) {
  return Milliseconds(clock.Now() - begun) / 1000;
}

}  // namespace

int32_t DraftModel::Longest(const DraftContext& context) const {
  if (context.largest_token() >= static_cast<uint32_t>(runner_.vocab())) return 0;
  const auto size = static_cast<int64_t>(context.tokens().size());
  return static_cast<int32_t>(std::max<int64_t>(0, runner_.max_position() - size));
}

StepCost DraftModel::CostOf(const StepCost& target) const {
  if (cost_.known()) return cost_;
  StepCost assumed;
  assumed.Add(1, options_.relative_cost * target.Seconds(1));
  return assumed;
}

double DraftModel::CatchUpSecondsPerToken(const StepCost& target) const {
  if (caught_up_seconds_ > 0) return caught_up_seconds_ / caught_up_tokens_;
  return CostOf(target).Seconds(1) / kTokensInStep;
}

double DraftModel::CatchUpSeconds(const DraftContext& context, const StepCost& target) const {
  return static_cast<double>(context.pending()) * CatchUpSecondsPerToken(target);
}

bool DraftModel::HasRoom(const DraftContext& context) const {
  const auto tokens = static_cast<int64_t>(context.tokens().size() + kRoomTokens);
  return pool_.view().layout.BlocksFor(tokens) <= pool_.blocks_free();
}

absl::Status DraftModel::CatchUp(DraftContext& context, double seconds, const StepCost& target) {
  const double affordable = std::max(kCatchUpLeast, seconds / CatchUpSecondsPerToken(target));
  const auto most = std::min(affordable, static_cast<double>(options_.step_tokens));
  // The last token is left to the step of the first guess.
  const size_t count = std::min(context.pending() - 1, static_cast<size_t>(most));
  const size_t from = context.computed();
  if (!context.Reserve(from + count, pool_)) {
    context.Release();
    return absl::OkStatus();
  }
  const SequenceStep step{.tokens = context.tokens().subspan(from, count),
                          .position = static_cast<int32_t>(from),
                          .blocks = context.table()};
  const TimePoint begun = clock_.Now();
  RETURN_IF_ERROR(outputs_.Run({.sequences = {&step, 1},
                                .kv = pool_.view(),
                                .logits = {},
                                .on_layers_done = {},
                                .layers_per_group = 0}));
  context.Computed(count);
  caught_up_tokens_ = caught_up_tokens_ * kForget + static_cast<double>(count);
  caught_up_seconds_ = caught_up_seconds_ * kForget + SecondsSince(begun, clock_);
  return absl::OkStatus();
}

absl::Status DraftModel::Guess(std::span<DraftAsk> asks) {
  skipped_ = 0;
  std::vector<DraftAsk*> open;
  for (DraftAsk& ask : asks) {
    DraftContext& context = *ask.context;
    context.BeginGuess();
    if (ask.draws.empty()) continue;
    if (context.Reserve(context.tokens().size() + ask.draws.size() - 1, pool_)) {
      open.push_back(&ask);
    } else {
      context.Release();
    }
  }
  for (size_t index = 0; !open.empty(); ++index) {
    RETURN_IF_ERROR(GuessNext(open, index));
    std::erase_if(open, [index](const DraftAsk* ask) { return ask->draws.size() == index + 1; });
  }
  return absl::OkStatus();
}

// Computes what comes before the `index`-th token of each guess, and draws that token.
absl::Status DraftModel::GuessNext(std::span<DraftAsk* const> asks, size_t index) {
  std::vector<SequenceStep> steps;
  size_t tokens = 0;
  for (DraftAsk* const ask : asks) {
    steps.push_back(NextStep(*ask->context, index));
    tokens += steps.back().tokens.size();
  }
  for (size_t i = 0; i < asks.size(); ++i) outputs_.Want(steps[i], DrawsOf(asks[i]->draws[index]));
  const TimePoint begun = clock_.Now();
  RETURN_IF_ERROR(outputs_.Run({.sequences = steps,
                                .kv = pool_.view(),
                                .logits = {},
                                .on_layers_done = {},
                                .layers_per_group = 0}));
  for (size_t i = 0; i < asks.size(); ++i) {
    DraftContext& context = *asks[i]->context;
    if (index == 0) context.Computed(context.pending());
    context.AddGuess(TokenOf(outputs_.at(i), asks[i]->draws[index]));
  }
  cost_.Add(static_cast<int64_t>(tokens), SecondsSince(begun, clock_));
  return absl::OkStatus();
}

// None where the runner might draw a token that the target does not have.
std::vector<DrawSpec> DraftModel::DrawsOf(const DrawSpec& draw) const {
  if (runner_.vocab() > options_.vocab) return {};
  return {draw};
}

SequenceStep DraftModel::NextStep(const DraftContext& context, size_t index) {
  if (index == 0) {
    return {.tokens = context.tokens().subspan(context.computed()),
            .position = static_cast<int32_t>(context.computed()),
            .blocks = context.table()};
  }
  return {.tokens = context.guess().subspan(index - 1, 1),
          .position = static_cast<int32_t>(context.tokens().size() + index - 1),
          .blocks = context.table()};
}

uint32_t DraftModel::TokenOf(const StepOutput& output, const DrawSpec& draw) const {
  if (!output.drawn.empty()) return output.drawn[0].id;
  const size_t vocab = std::min(output.logits.size(), static_cast<size_t>(options_.vocab));
  return DrawToken(output.logits.first(vocab), draw);
}

// Also forgets the measured times, so that one that was too long does not keep guesses away for
// ever.
void DraftModel::SkipGuesses() {
  acceptance_.Skip();
  if (++skipped_ < kForgetSteps) return;
  skipped_ = 0;
  cost_ = {};
  caught_up_tokens_ = caught_up_seconds_ = 0;
}

}  // namespace penstock
