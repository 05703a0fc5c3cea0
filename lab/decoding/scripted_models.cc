#include "lab/decoding/scripted_models.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "lab/micro/kernels_model.h"

namespace penstock {
namespace {

constexpr int32_t kDraftStepTokens = 512;

// 112 million weights.
ModelConfig TenthShape() {
  ModelConfig config = TinyLlamaShape();
  config.layers = 10;
  config.hidden = 768;
  config.intermediate = 2048;
  config.heads = 12;
  return config;
}

}  // namespace

std::vector<bool> WrongPlaces(size_t size, size_t first, double share) {
  std::vector<bool> wrong(size, false);
  const auto answers = wrong.begin() + static_cast<std::ptrdiff_t>(first);
  std::fill_n(answers, std::lround(static_cast<double>(size - first) * (1 - share)), true);
  std::shuffle(answers, wrong.end(), std::mt19937(1));
  return wrong;
}

absl::Status ScriptedRunner::Step(const StepArgs& args) {
  RETURN_IF_ERROR(runner_.Step(args));
  Overrule(args, wrong);
  return absl::OkStatus();
}

absl::Status ScriptedRunner::StepMtp(const StepArgs& args) {
  RETURN_IF_ERROR(runner_.mtp()->StepMtp(args));
  Overrule(args, mtp_wrong);
  return absl::OkStatus();
}

void ScriptedRunner::Overrule(const StepArgs& args, const std::vector<bool>& wrong_places) const {
  int64_t row = 0;
  for (const SequenceStep& step : args.sequences) {
    if (!step.wants_logits) continue;
    const auto next = static_cast<size_t>(step.position) + step.tokens.size();
    const size_t place = std::min(next, script.size() - 1);
    const bool is_wrong = !wrong_places.empty() && wrong_places[place];
    args.logits.row(row++)[is_wrong ? script[place] ^ 1 : script[place]] = 1e6f;
  }
}

BenchDraft::BenchDraft(const Exec& exec, WeightPolicy policy, size_t target_bytes)
    : weights_(RandomWeights(TenthShape(), 2, 0.02f, FormsOf(policy))),
      relative_cost_(static_cast<double>(weights_.bytes()) / static_cast<double>(target_bytes)),
      runner_(weights_, exec, kDraftStepTokens),
      scripted_(runner_) {}

absl::StatusOr<std::unique_ptr<BenchDraft>> BenchDraft::Open(const Exec& exec, WeightPolicy policy,
                                                             int64_t blocks, size_t target_bytes) {
  auto draft = std::unique_ptr<BenchDraft>(new BenchDraft(exec, policy, target_bytes));
  ASSIGN_OR_RETURN(draft->pool_, BlockPool::Create(draft->runner_.kv_layout(), blocks));
  draft->Forget();
  return draft;
}

void BenchDraft::Forget() {
  model_ = std::make_unique<DraftModel>(scripted_, *pool_, clock_,
                                        DraftModel::Options{.step_tokens = kDraftStepTokens,
                                                            .vocab = runner_.vocab(),
                                                            .relative_cost = relative_cost_});
}

void BenchDraft::Record(double share) {
  constexpr int kGuesses = 512;
  std::mt19937 random(2);
  DraftContext context({0}, 1);
  for (int i = 0; i < kGuesses; ++i) {
    context.BeginGuess();
    context.AddGuess(0);
    context.Observe(std::uniform_real_distribution()(random) < share ? 0 : 1);
    model_->Count(context);
  }
}

void BenchDraft::Guess(const ScriptedRunner::Tokens& script, size_t first, double share) {
  scripted_.script = script;
  scripted_.wrong = WrongPlaces(script.size(), first, share);
}

}  // namespace penstock
