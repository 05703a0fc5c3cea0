#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "decode_worker/speculation/draft_model.h"
#include "kvstore/cache/block_pool.h"
#include "model/forward/transformer_runner.h"
#include "model/weights/weight_policy.h"

namespace penstock {

// Marks places of a script, from `first` on, at which 1 - `share` of all guesses are wrong.
std::vector<bool> WrongPlaces(size_t size, size_t first, double share);

// Computes a step, and gives the script's next token the greatest logit of each row.
class ScriptedRunner final : public ModelRunner, public MtpLayer {
 public:
  using Tokens = std::vector<uint32_t>;
  explicit ScriptedRunner(ModelRunner& runner) : runner_(runner) {}

  Tokens script;
  std::vector<bool> wrong;      // by the token's place in the script; empty: none is
  std::vector<bool> mtp_wrong;  // the same of guesses of the layer for multi-token prediction

  int32_t vocab() const override { return runner_.vocab(); }
  KvLayout kv_layout() const override { return runner_.kv_layout(); }
  int32_t max_position() const override { return runner_.max_position(); }
  int32_t hidden_size() const override { return runner_.hidden_size(); }
  MtpLayer* mtp() override { return runner_.mtp() == nullptr ? nullptr : this; }
  absl::Status Step(const StepArgs& args) override;
  absl::Status StepMtp(const StepArgs& args) override;

 private:
  void Overrule(const StepArgs& args, const std::vector<bool>& wrong_places) const;

  ModelRunner& runner_;
};

// A draft model with random weights, of a tenth of TinyLlama-1.1B's size, that computes every step,
// and then guesses a given share of the script's tokens right, at random places.
class BenchDraft {
 public:
  // `blocks`: of its KV. `target_bytes`: of the target's weights.
  static absl::StatusOr<std::unique_ptr<BenchDraft>> Open(const Exec& exec, WeightPolicy policy,
                                                          int64_t blocks, size_t target_bytes);
  // Sets the answers, which begin at `first`.
  void Guess(const ScriptedRunner::Tokens& script, size_t first, double share);
  // Forgets its acceptance and its times, as if the worker had just started. Not during a run.
  void Forget();
  // Records guesses of which `share` were right.
  void Record(double share);
  DraftModel& model() { return *model_; }

 private:
  BenchDraft(const Exec& exec, WeightPolicy policy, size_t target_bytes);

  SteadyClock clock_;
  const Weights weights_;
  const double relative_cost_;
  TransformerRunner runner_;
  ScriptedRunner scripted_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<DraftModel> model_;
};

}  // namespace penstock
