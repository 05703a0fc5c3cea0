// CudaRunner: the course of a step, once its arrays are on the device.

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/kv_planes.h"
#include "model/cuda/cuda_runner.h"
#include "model/forward/step_check.h"

namespace penstock {
namespace {

// Records an event behind each group of layers whose keys and values a step has enqueued.
class LayerMarks {
 public:
  LayerMarks(const StepArgs& args, int32_t stored, std::vector<std::unique_ptr<CudaEvent>>& events,
             void* stream)
      : wanted_(args.on_layers_done != nullptr),
        stored_(stored),
        group_(args.layers_per_group > 0 ? args.layers_per_group : stored),
        events_(events),
        stream_(stream) {}

  // The first `done` layers are enqueued.
  void Add(int32_t done) {
    if (!wanted_ || (done % group_ != 0 && done != stored_)) return;
    if (events_.size() == marked_) events_.push_back(std::make_unique<CudaEvent>());
    cuda::RecordEvent(events_[marked_++]->get(), stream_);
  }

 private:
  const bool wanted_;
  const int32_t stored_, group_;
  std::vector<std::unique_ptr<CudaEvent>>& events_;
  void* const stream_;
  size_t marked_ = 0;
};

}  // namespace

absl::Status CudaRunner::StepMtp(const StepArgs& args) {
  RETURN_IF_ERROR(CheckSpans(args.kv.layout.format()));
  RETURN_IF_ERROR(CheckStep(args, {.layout = kv_layout(),
                                   .vocab = vocab(),
                                   .max_position = max_position(),
                                   .max_tokens = options_.max_step_tokens,
                                   .draws_tokens = draws_tokens(),
                                   .hidden_size = hidden_size(),
                                   .has_mtp = true}));
  RETURN_IF_ERROR(CheckBefore(args, config_.hidden));
  RETURN_IF_ERROR(CheckPages(args.kv));
  if (args.sequences.empty()) return absl::OkStatus();
  device_.Select();
  CudaStep step(CudaBatch(args, config_.hidden, config_.heads / config_.kv_heads));
  for (const SequenceStep& sequence : args.sequences) step.batch.mtp.AddGiven(sequence);
  RETURN_IF_ERROR(Agree({.prepared = Prepare(args, step)}).prepared);
  BeginMtp(step.all_rows, step.batch.all, step);
  layers().AppendKv(config_.layers, step);
  if (FinishLayer(config_.layers, step)) MakeOutputs(weights_->mtp.norm, step);
  RETURN_IF_ERROR(cuda::TakeStatus("enqueueing a step"));
  return Outputs(args, step);
}

absl::Status CudaRunner::RunStep(const StepArgs& args, CudaStep& step) {
  const bool by_graph = options_.graphs_max > 0 && !args.on_queries && step.batch.paddable();
  if (by_graph) return StepAsGraph(args, step);
  RETURN_IF_ERROR(Agree({.prepared = Prepare(args, step)}).prepared);
  if (args.on_queries) return StepObserved(args, step);
  if (IsBlended(args.sequences)) return StepBlended(args, step);
  Enqueue(args, step);
  RETURN_IF_ERROR(cuda::TakeStatus("enqueueing a step"));
  if (args.meanwhile) args.meanwhile();
  RETURN_IF_ERROR(ReportLayers(args));
  return Outputs(args, step);
}

StepReadiness CudaRunner::Agree(const StepReadiness& own) const {
  return options_.exchange == nullptr ? own : options_.exchange->Agree(own);
}

// True if memory that graphs name is no longer where it was at the last call.
bool CudaRunner::MemoryMoved() {
  std::vector<const void*> now = scratch_.Addresses();
  if (selector_ != nullptr) now.insert(now.end(), {selector_->scores(), selector_->chosen()});
  const bool moved = now != captured_;
  captured_ = std::move(now);
  return moved;
}

// Runs a decode step as one graph. Layers are reported when all of them are complete.
absl::Status CudaRunner::StepAsGraph(const StepArgs& args, CudaStep& step) {
  const CudaBatchShape shape = step.batch.PaddedShape(options_.max_step_tokens);
  step.batch.PadTo(shape);
  const absl::Status prepared = Prepare(args, step);
  const StepReadiness ready = Agree({.prepared = prepared, .memory_moved = MemoryMoved()});
  if (ready.memory_moved) graphs_.Clear();
  RETURN_IF_ERROR(ready.prepared);
  const CudaGraphKey key{.shape = shape,
                         .arena = args.kv.arena,
                         .format = args.kv.layout.format(),
                         .block_tokens = args.kv.layout.block_tokens};
  StepArgs untold = args;
  untold.on_layers_done = nullptr;
  graphs_.Run(key, [&] { Enqueue(untold, step); });
  RETURN_IF_ERROR(cuda::TakeStatus("enqueueing a step"));
  if (args.meanwhile) args.meanwhile();
  RETURN_IF_ERROR(Outputs(args, step));
  if (args.on_layers_done) args.on_layers_done(0, args.kv.layout.layers);
  return absl::OkStatus();
}

// Runs a step whose queries are asked for. The GPU computes the rest of a layer while the host
// works with the layer's queries; then the next layer is enqueued, which has others.
absl::Status CudaRunner::StepObserved(const StepArgs& args, CudaStep& step) {
  const RowRange all{.first = 0, .count = step.batch.all.rows};
  const std::span<const RowRange> observed =
      args.observed.empty() ? std::span(&all, 1) : args.observed;
  const int32_t count = config_.layers, stored = config_.KvLayers();
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : stored;
  BeginLayers(step.all_rows, step.batch.all, step);
  for (int32_t i = 0; i < count; ++i) {
    layers().AppendKv(i, step);
    const auto* queries = scratch_.queries.as<Bf16>();
    for (const RowRange& rows : observed) {
      observed_->Copy(queries, rows.first, rows.count, device_.stream());
    }
    observed_->Mark(device_.stream());
    if (FinishLayer(i, step) && i + 1 == count) FinishStep(args, step);
    if (i == 0 && args.meanwhile) args.meanwhile();
    const View<const float, 2> taken = observed_->Await(all.count);
    RETURN_IF_ERROR(cuda::TakeStatus("a step"));
    args.on_queries(i, taken);
    const bool reports = args.on_layers_done && ((i + 1) % group == 0 || i + 1 == stored);
    if (reports) args.on_layers_done(i / group * group, i + 1);
  }
  RETURN_IF_ERROR(Outputs(args, step));
  if (args.on_layers_done && stored > count) args.on_layers_done(count / group * group, stored);
  return absl::OkStatus();
}

// Runs a step with blended parts. Behind the layer that is checked, the host chooses the rows that
// are computed further, for which it waits there.
absl::Status CudaRunner::StepBlended(const StepArgs& args, CudaStep& step) {
  LayerMarks marks(args, config_.KvLayers(), scratch_.group_done, device_.stream());
  BeginLayers(step.all_rows, step.batch.all, step);
  for (int32_t i = 0; i < kCheckedLayer; ++i) {
    layers().AppendKv(i, step);
    marks.Add(i + 1);
    FinishLayer(i, step);
  }
  ASSIGN_OR_RETURN(BlendedStep rest, CheckValues(args, step));
  marks.Add(kCheckedLayer + 1);
  StepArgs further = args;
  further.sequences = rest.sequences;
  step.batch = BatchOf(further, /*joins=*/true);
  step.kept = std::move(rest.rows);
  RETURN_IF_ERROR(Prepare(further, step));
  layers().KeepRows(step);
  for (int32_t i = kCheckedLayer; i < config_.layers; ++i) {
    if (i > kCheckedLayer) {
      layers().AppendKv(i, step);
      marks.Add(i + 1);
    }
    if (FinishLayer(i, step) && i + 1 == config_.layers) MakeOutputs(weights_->final_norm, step);
  }
  RETURN_IF_ERROR(cuda::TakeStatus("enqueueing a step"));
  if (args.meanwhile) args.meanwhile();
  RETURN_IF_ERROR(ReportLayers(args));
  return Outputs(further, step);
}

// Writes keys and values of the layer that is checked, and chooses the rows that go on.
absl::StatusOr<BlendedStep> CudaRunner::CheckValues(const StepArgs& args, CudaStep& step) {
  const int64_t before = RowsBeforeBlended(args.sequences), rows = step.batch.all.rows - before;
  const cuda::KvPlanes planes = cuda::PlanesOf(args.kv, kCheckedLayer);
  const int64_t* slots = step.SlotsOf(kCheckedLayer) + before;
  blend_->KeepValues(planes, slots, rows);
  layers().AppendKv(kCheckedLayer, step);
  ASSIGN_OR_RETURN(const std::span<const float> squares,
                   blend_->CompareValues(planes, slots, rows));
  return ChooseRows(args.sequences, squares);
}

// Sets what the layers change, for the first of them, and embeds the rows' tokens. A step whose
// capture was refused is enqueued again.
void CudaRunner::BeginLayers(const StepRows& rows, const CudaAttention& attention, CudaStep& step) {
  step.rows = &rows;
  step.attention = &attention;
  step.attention_at = &step.all_at;
  step.selected = &step.batch.all_selected;
  step.selected_at = &step.all_selected_at;
  step.residual = scratch_.residual.as<float>();
  step.queries = scratch_.queries.as<Bf16>();
  step.centre_queries = step.kv.layout.centred ? centre_->queries() : nullptr;
  step.to_add = {};
  step.to_add_norm = nullptr;
  layers().Embed(step);
}

// The same for the layer for multi-token prediction, which has no means of keys.
void CudaRunner::BeginMtp(const StepRows& rows, const CudaAttention& attention, CudaStep& step) {
  BeginLayers(rows, attention, step);
  step.centre_queries = nullptr;
  layers().ProjectMtp(step);
}

void CudaRunner::Enqueue(const StepArgs& args, CudaStep& step) {
  const int32_t count = config_.layers, stored = config_.KvLayers();
  LayerMarks marks(args, stored, scratch_.group_done, device_.stream());
  BeginLayers(step.all_rows, step.batch.all, step);
  for (int32_t i = 0; i < count; ++i) {
    layers().AppendKv(i, step);
    marks.Add(i + 1);
    if (FinishLayer(i, step) && i + 1 == count) FinishStep(args, step);
  }
  if (stored > count) marks.Add(stored);
}

// Enqueues what follows the last layer. The layer for multi-token prediction takes the memory of
// the outputs, so these are copied first.
void CudaRunner::FinishStep(const StepArgs& args, CudaStep& step) {
  MakeOutputs(weights_->final_norm, step);
  if (step.batch.mtp.rows().empty()) return;
  CopyOutputs(args, step.batch);
  BeginMtp(step.mtp_rows, step.mtp_attention, step);
  layers().AppendKv(config_.layers, step);
}

// Enqueues the hidden states behind `norm`, and what rank 0 makes of them.
void CudaRunner::MakeOutputs(const cuda::DeviceBuffer& norm, CudaStep& step) {
  const CudaLayers layers = this->layers();
  if (makes_logits() || !step.batch.mtp.rows().empty()) layers.NormOutputs(norm, step);
  if (makes_logits()) layers.Logits(step);
}

// Enqueues what follows a layer's keys and values. Returns false if no row needs it: in the last
// layer, and in that for multi-token prediction, only CudaBatch::last_rows do.
bool CudaRunner::FinishLayer(int32_t layer, CudaStep& step) {
  const CudaLayers layers = this->layers();
  if (layer + 1 >= config_.layers) {
    if (step.batch.last_rows.empty()) return false;
    if (!step.batch.all_last) layers.KeepLastRows(step);
  }
  layers.Attend(layer, step);
  layers.Finish(layer, step);
  return true;
}

// Reports each group of layers when the device has completed it, while the device computes later
// groups.
absl::Status CudaRunner::ReportLayers(const StepArgs& args) {
  if (!args.on_layers_done) return absl::OkStatus();
  const int32_t layers = config_.KvLayers(), copies = args.kv.layout.Copies();
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  size_t index = 0;
  for (int32_t first = 0; first < layers; first += group) {
    cuda::SynchronizeEvent(scratch_.group_done[index++]->get());
    RETURN_IF_ERROR(cuda::TakeStatus("a step"));  // before a sender reads pages that are incomplete
    args.on_layers_done(copies * first, copies * std::min(first + group, layers));
  }
  return absl::OkStatus();
}

}  // namespace penstock
