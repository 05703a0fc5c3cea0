#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/device.h"
#include "model/forward/model_runner.h"
#include "model/weights/weights.h"

namespace penstock {

struct TransformerScratch;

// The forward pass on CPUs, of every architecture that ModelConfig can describe. Owns scratch for
// `max_step_tokens` tokens, allocated once. One thread calls Step.
class TransformerRunner final : public ModelRunner, public MtpLayer {
 public:
  // `weights` and `exec.threads` outlive the runner.
  TransformerRunner(const Weights& weights, const Exec& exec, int32_t max_step_tokens);
  ~TransformerRunner() override;

  int32_t vocab() const override;
  int32_t hidden_size() const override;
  KvLayout kv_layout() const override;
  int32_t max_position() const override;
  std::optional<EvictionAttention> eviction_attention() const override;
  std::optional<KeyRotations> key_rotations() const override;
  bool selects_pages() const override;
  int32_t max_step_tokens() const;  // total over the sequences of a step
  size_t scratch_bytes() const;

  // Returns INVALID_ARGUMENT, before anything is written, that names the value out of range: a
  // token, position, block table, layout, shape of the logits, or more than max_step_tokens()
  // tokens. Also errors of ExpertCache::Get, after which the step has written to its own slots of
  // the pages only, and may be repeated.
  absl::Status Step(const StepArgs& args) override;

  // `this` if the weights have the layer for multi-token prediction.
  MtpLayer* mtp() override;
  absl::Status StepMtp(const StepArgs& args) override;

 private:
  struct Branch;
  struct Batch;

  // The residual, normed if the layer has this norm.
  View<const float, 2> Normed(const std::vector<float>& norm, const Batch& batch);
  void AddBranch(const std::vector<float>& norm, const Batch& batch);
  void AddProduct(const Branch& branch, const Batch& batch);
  void StoreProduct(const Branch& branch, const Batch& batch);
  View<float, 2> Project(int32_t layer, const Batch& batch);
  void AppendKv(const StepArgs& args, int32_t layer, const Batch& batch);
  void AppendLatents(const StepArgs& args, int32_t layer, const Batch& batch);
  // The means of a layer's keys. Empty if the pages are not centred or the layer has no means.
  KeyCentre CentreOf(const PagedKv& kv, int32_t layer) const;
  void Attend(const StepArgs& args, int32_t layer, const Batch& batch);
  void TellDone(const StepArgs& args, int32_t done) const;
  void KeepRows(Batch& batch);
  absl::Status FinishLayer(const StepArgs& args, int32_t layer, const Batch& batch);
  void Finish(const StepArgs& args, Batch& batch);
  View<const float, 2> RowsWithLogits(View<const float, 2> hidden, const Batch& batch);
  void Logits(const StepArgs& args, View<const float, 2> hidden);

  // transformer_prepare.cc: what comes before the first layer.
  absl::Status CheckPageFormat(const KvLayout& layout) const;
  absl::Status Check(const StepArgs& args) const;
  void Prepare(const StepArgs& args, Batch& batch);
  void AddTokens(const StepArgs& args, const SequenceStep& sequence, int64_t first_row);
  void AddSequence(const SequenceStep& sequence, Batch& batch);
  void Embed(const Batch& batch);
  void AddPositions(const Batch& batch);

  // transformer_blend.cc: rows of blended parts.
  void ReadReused(const StepArgs& args, Batch& batch);
  std::vector<uint32_t> ChooseRows(const AttentionSequence& part, const Batch& batch,
                                   BlendedTokens& blended);
  void DropRows(const StepArgs& args, Batch& batch);
  void MoveRow(int64_t from, int64_t to);

  // transformer_selection.cc: rows that select pages, and pages that a pager is told of.
  void PrepareSelection(const StepArgs& args, Batch& batch);
  static bool Selects(int32_t layer, const Batch& batch);  // true if rows of the layer select
  void WantLayer(const StepArgs& args, int32_t layer, const Batch& batch) const;
  void ReportReads(const StepArgs& args) const;
  void GuessPages(const StepArgs& args, int32_t layer, const Batch& batch);
  std::span<const AttentionSequence> Attended(const StepArgs& args, int32_t layer,
                                              const Batch& batch);

  // transformer_mtp.cc: the layer for multi-token prediction.
  void GatherMtp(View<const float, 2> hidden, Batch& batch);
  void ProjectMtp(const Batch& batch);
  void FillMtp(const StepArgs& args, Batch& batch);

  const Weights& weights_;
  const Exec exec_;
  const std::unique_ptr<KvEvictor> evictor_;
  const std::unique_ptr<TransformerScratch> scratch_;
};

}  // namespace penstock
