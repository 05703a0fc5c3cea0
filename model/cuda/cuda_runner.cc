#include "model/cuda/cuda_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/latents/latents.h"
#include "kernels/selection/page_bounds.h"
#include "model/cuda/cuda_model_check.h"
#include "model/cuda/prompts/fast_check.h"
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

// The hidden states that StepMtp takes from the host.
absl::Status CheckBefore(const StepArgs& args, int32_t hidden) {
  for (size_t i = 0; i < args.sequences.size(); ++i) {
    const SequenceStep& sequence = args.sequences[i];
    const size_t wanted = sequence.tokens.size() * static_cast<size_t>(hidden);
    if (sequence.before.size() == wanted && !sequence.fills_mtp) continue;
    return InvalidArgument("sequence {} has {} numbers of the tokens before, it must have {}", i,
                           sequence.before.size(), wanted);
  }
  return absl::OkStatus();
}

}  // namespace

CudaRunner::CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options)
    : config_(options.shard.Of(weights.config)),
      device_(device),
      options_(options),
      graphs_(options.graphs_max, device.stream(), options.exchange) {}

CudaRunner::~CudaRunner() { cuda::Synchronize(device_.stream()); }

int32_t CudaRunner::vocab() const { return config_.vocab; }
int32_t CudaRunner::max_position() const { return config_.max_position; }
KvLayout CudaRunner::kv_layout() const {
  return {.layers = config_.KvLayers(),
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .window = config_.WindowOfAllLayers(),
          .latent_rope_dim = config_.latent.rope_dims,
          .group = WindowGroupOf(config_.sliding_window)};
}

absl::StatusOr<std::unique_ptr<CudaRunner>> CudaRunner::Create(const Weights& weights,
                                                               cuda::CudaDevice& device,
                                                               const Options& options) {
  RETURN_IF_ERROR(CheckCudaModel(weights.config, options.shard.ranks));
  std::unique_ptr<CudaRunner> runner(new CudaRunner(weights, device, options));
  if (!weights.config.HasLatents() && !cuda::SupportsKv({.head_dim = weights.config.head_dim})) {
    return FailedPrecondition(
        "head_dim is {}; the CUDA kernels support 64 and 128; use --device=cpu instead",
        weights.config.head_dim);
  }
  if (options.fast_prompts) RETURN_IF_ERROR(CheckFastPrompts(weights.config, device.info()));
  device.Select();
  ASSIGN_OR_RETURN(runner->weights_,
                   CudaWeights::Upload(weights, options.shard, options.products->order(),
                                       options.load_threads, device.stream()));
  RETURN_IF_ERROR(runner->CheckProducts());
  RETURN_IF_ERROR(runner->scratch_.Allocate(runner->config_, *runner->weights_, *options.products,
                                            options.max_step_tokens));
  if (options.evicts) RETURN_IF_ERROR(runner->AllocateEvictions());
  if (options.blends) RETURN_IF_ERROR(runner->AllocateBlends());
  if (!weights.layers[0].key_means.empty()) {
    ASSIGN_OR_RETURN(
        runner->centre_,
        DeviceCentre::Create(weights, options.shard, options.max_step_tokens, device.stream()));
  }
  return runner;
}

// Not where attention has a window, which counts positions and not slots, nor with sinks, which the
// scores of keys do not know, nor with latents, which have no keys of heads.
absl::Status CudaRunner::AllocateEvictions() {
  const auto& windows = config_.sliding_window;
  if (config_.attention_sinks || config_.HasLatents() ||
      std::ranges::count(windows, 0) != std::ssize(windows)) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(evictor_, CudaEvictor::Create(device_, {.heads = config_.heads,
                                                           .kv_heads = config_.kv_heads,
                                                           .head_dim = config_.head_dim,
                                                           .tokens_max = config_.max_position}));
  ASSIGN_OR_RETURN(observed_, ObservedQueries::Create(options_.max_step_tokens,
                                                      int64_t{config_.heads} * config_.head_dim));
  return absl::OkStatus();
}

// Where a CPU blends, on one GPU; not beside evictions, whose steps wait for their queries, nor
// with the library's attention, whose bits depend on where a prompt ends.
absl::Status CudaRunner::AllocateBlends() {
  const auto& windows = config_.sliding_window;
  const bool other = options_.exchange != nullptr || options_.evicts || options_.fast_prompts;
  if (other || config_.HasLatents() || config_.use_mtp || weights_->positions.bytes() > 0 ||
      config_.layers <= kCheckedLayer + 1 ||
      std::ranges::count(windows, 0) != std::ssize(windows)) {
    return absl::OkStatus();
  }
  std::vector<int32_t> angles_of;
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    const LayerRope rope = config_.RopeOf(layer);
    angles_of.push_back(rope == LayerRope::kNone ? -1 : rope == LayerRope::kLocal ? 1 : 0);
  }
  ASSIGN_OR_RETURN(blend_,
                   CudaBlend::Create(device_, {.angles = {&scratch_.angles, &scratch_.local_angles},
                                               .angles_of = std::move(angles_of),
                                               .value_width = config_.kv_heads * config_.head_dim,
                                               .rows_max = options_.max_step_tokens}));
  return absl::OkStatus();
}

std::optional<KeyRotations> CudaRunner::key_rotations() const {
  if (blend_ == nullptr) return std::nullopt;
  return blend_->rotations();
}

std::optional<EvictionAttention> CudaRunner::eviction_attention() const {
  if (evictor_ == nullptr) return std::nullopt;
  return EvictionAttention{.heads = config_.heads,
                           .scale = AttentionScale(config_),
                           .cap = config_.attention_cap,
                           .evictor = evictor_.get()};
}

// Not where attention has a window or a span, which count positions and not slots, nor with
// latents, which have no keys of heads, nor with the library's attention, which has no tables of
// single heads.
size_t CudaRunner::BoundsBytes(const KvLayout& layout) const {
  const auto& windows = config_.sliding_window;
  const bool able = !options_.fast_prompts && !config_.HasLatents() && layout.span == 0 &&
                    std::ranges::count(windows, 0) == std::ssize(windows);
  return able && options_.selects ? PageBounds::BytesOf(layout) : 0;
}

absl::Status CudaRunner::KeepBounds(const PagedKv& kv) {
  if (BoundsBytes(kv.layout) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(selector_, PageSelector::Create(kv, config_.heads));
  return absl::OkStatus();
}

absl::Status CudaRunner::CheckProducts() const {
  for (const CudaMatrix* m : weights_->Matrices()) {
    RETURN_IF_ERROR(options_.products->Check(m->weight));
  }
  return makes_logits() ? options_.products->Check(weights_->lm_head.weight) : absl::OkStatus();
}

CudaLayers CudaRunner::layers() {
  return CudaLayers({.config = config_,
                     .weights = *weights_,
                     .scratch = scratch_,
                     .products = *options_.products,
                     .exchange = options_.exchange,
                     .stream = device_.stream(),
                     .selector = selector_.get(),
                     .centre = centre_.get(),
                     .prompts = prompts()});
}

cuda::library::PrefillShape CudaRunner::prompts() const {
  return {.heads = config_.heads,
          .head_dim = config_.head_dim,
          .processors = device_.info().processors};
}

absl::Status CudaRunner::CheckSpans(const KvPageFormat& format) const {
  if (format.span == 0) return absl::OkStatus();
  if (format.centred && centre_ == nullptr) {
    return InvalidArgument("kv.layout has centred keys, and the weights have no means of keys");
  }
  return CheckCudaSpans(format, config_);
}

absl::Status CudaRunner::CheckPages(const PagedKv& kv) const {
  const cuda::KvPlanes planes = cuda::PlanesOf(kv, 0);
  const bool supported =
      config_.HasLatents() ? cuda::SupportsLatents(planes) : cuda::SupportsKv(planes);
  if (!supported || 1 << planes.page_log2 != kv.layout.block_tokens) {
    return InvalidArgument(
        "kv.layout has blocks of {} tokens; the CUDA kernels support powers of two from 16 to "
        "1,024",
        kv.layout.block_tokens);
  }
  if (options_.fast_prompts) return CheckFastPages(kv.layout.dtype);
  return absl::OkStatus();
}

absl::Status CudaRunner::Step(const StepArgs& args) {
  const KvPageFormat format = args.kv.layout.format();
  RETURN_IF_ERROR(CheckSpans(format));
  RETURN_IF_ERROR(CheckStep(args, {.layout = kv_layout(),
                                   .vocab = vocab(),
                                   .max_position = max_position(),
                                   .max_tokens = options_.max_step_tokens,
                                   .draws_tokens = draws_tokens(),
                                   .hidden_size = hidden_size(),
                                   .takes_evicted = evictor_ != nullptr && format.span == 0,
                                   .has_mtp = config_.use_mtp,
                                   .blends = blend_ != nullptr && format == KvPageFormat(),
                                   .selects_pages = selector_ != nullptr && format.span == 0}));
  RETURN_IF_ERROR(CheckPages(args.kv));
  if (args.sequences.empty()) return absl::OkStatus();
  device_.Select();
  CudaStep step(BatchOf(args));
  RETURN_IF_ERROR(RunStep(args, step));
  if (step.batch.selecting.any()) step.batch.selecting.RememberIn(selector_->known(), args.kv);
  return absl::OkStatus();
}

CudaBatch CudaRunner::BatchOf(const StepArgs& args) const {
  const cuda::library::PrefillShape prompts = this->prompts();
  return {args, config_.hidden, config_.heads / config_.kv_heads,
          options_.fast_prompts ? &prompts : nullptr,
          selector_ != nullptr ? &selector_->known() : nullptr};
}

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
  step.batch = BatchOf(further);
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

StepRows CudaRunner::AddRows(const CudaRows& of, StepInputs& inputs) {
  StepRows rows{.tokens = inputs.Add(of.tokens),
                .slots = inputs.Add(of.slots),
                .row_slots = inputs.Add(of.row_slots)};
  rows.angles[static_cast<size_t>(LayerRope::kMain)] =
      AddAngles(scratch_.angles, of.positions, inputs);
  rows.angles[static_cast<size_t>(LayerRope::kLocal)] =
      AddAngles(scratch_.local_angles, of.positions, inputs);
  if (weights_->positions.bytes() > 0) rows.positions = inputs.Add(of.positions);
  return rows;
}

// The inputs of the layer for multi-token prediction: of the step's rows that it takes, or of all.
void CudaRunner::AddMtp(CudaStep& step, StepInputs& inputs) {
  const MtpRows& mtp = step.batch.mtp;
  if (mtp.given().empty() && mtp.rows().empty()) return;
  const bool some = !mtp.rows().empty();
  if (some) {
    step.mtp_rows = AddRows(step.batch.RowsOf(mtp.rows()), inputs);
    step.mtp_attention.rows = static_cast<int32_t>(mtp.rows().size());
  }
  step.mtp_states = inputs.Add(mtp.states());
  step.mtp_before = inputs.Add(mtp.before());
  step.mtp_order =
      inputs.Add(MtpRows::JoinedOrder(some ? step.mtp_attention.rows : step.batch.all.rows));
}

absl::Status CudaRunner::Prepare(const StepArgs& args, CudaStep& step) {
  CudaScratch& s = scratch_;
  const CudaBatch& batch = step.batch;
  StepInputs inputs;
  step.all_rows = AddRows(batch.arrays, inputs);
  AddMtp(step, inputs);
  step.kept_rows = inputs.Add(step.kept);
  step.last_rows = inputs.Add(batch.last_rows);
  step.output_rows = inputs.Add(batch.output_rows);
  step.draws = inputs.Add(batch.draws);
  step.all_at = AddAttention(batch.all, inputs);
  if (!batch.all_last) step.last_at = AddAttention(batch.last, inputs);
  step.unbounded = inputs.Add(batch.unbounded);
  step.all_selected_at = AddSelected(batch.all_selected, inputs);
  step.last_selected_at = AddSelected(batch.last_selected, inputs);
  RETURN_IF_ERROR(GrowScratch(batch));
  RETURN_IF_ERROR(BeginSelection(args, batch));
  const size_t bytes = inputs.bytes().size();
  RETURN_IF_ERROR(Grow(s.inputs, std::bit_ceil(bytes), "inputs of a step"));
  RETURN_IF_ERROR(Grow(s.inputs_here, std::bit_ceil(bytes), "inputs of a step"));
  std::copy_n(inputs.bytes().data(), bytes, s.inputs_here.as<std::byte>());
  cuda::CopyToDevice(s.inputs.as<void>(), s.inputs_here.as<void>(), bytes, device_.stream());
  step.inputs = s.inputs.as<std::byte>();
  step.kv = args.kv;
  return absl::OkStatus();
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

absl::Status CudaRunner::GrowAttention(const CudaAttention& attention) {
  const cuda::AttentionPlan& plan = attention.plan;
  // Wide tiles of latents keep their sums in registers.
  const size_t wide = config_.HasLatents() ? 0 : plan.wide.size();
  RETURN_IF_ERROR(Grow(scratch_.wide_attention,
                       cuda::WideScratchBytes(wide, config_.kv_heads, config_.head_dim),
                       "attention of prompts"));
  const int32_t value_dim = kv_layout().ValueDim();
  return Grow(scratch_.narrow_attention,
              std::bit_ceil(cuda::NarrowScratchBytes(plan.shares, config_.kv_heads, value_dim)),
              "split attention");
}

absl::Status CudaRunner::BeginSelection(const StepArgs& args, const CudaBatch& batch) {
  if (!batch.selecting.any()) return absl::OkStatus();
  for (const auto& missing : batch.selecting.missing()) {
    selector_->known().Forget(args.kv, missing.block);
  }
  const CudaSelected& all = batch.all_selected;
  return selector_->Reserve(std::ssize(all.rows), all.pages_max, all.keep_max);
}

absl::Status CudaRunner::GrowScratch(const CudaBatch& batch) {
  CudaScratch& s = scratch_;
  for (const CudaAttention* attention :
       {&batch.all, &batch.last, &batch.all_selected.dense, &batch.all_selected.chosen,
        &batch.last_selected.dense, &batch.last_selected.chosen}) {
    RETURN_IF_ERROR(GrowAttention(*attention));
  }
  if (!makes_logits()) return absl::OkStatus();
  const size_t row_bytes = sizeof(float) * config_.vocab;
  const size_t slices = options_.products->Slices(weights_->lm_head.weight);
  const auto rows = static_cast<size_t>(batch.logits_count());
  RETURN_IF_ERROR(Grow(s.product, slices * rows * row_bytes, "logits"));
  size_t hidden_rows = 0;
  for (const CudaHidden& hidden : batch.hidden) hidden_rows += static_cast<size_t>(hidden.count);
  RETURN_IF_ERROR(
      Grow(s.hidden_states, hidden_rows * config_.hidden * sizeof(Bf16), "hidden states"));
  RETURN_IF_ERROR(Grow(s.logits, batch.logits_rows.size() * row_bytes, "logits"));
  const size_t draws_bytes = batch.draws.size() * sizeof(cuda::SampledRow);
  const auto draws = static_cast<int>(batch.draws.size());
  RETURN_IF_ERROR(Grow(s.draws, cuda::SampleScratchBytes(draws), "draws"));
  RETURN_IF_ERROR(Grow(s.sampled, draws_bytes, "drawn tokens"));
  return Grow(s.drawn, draws_bytes, "drawn tokens");
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

// Enqueues the copies of the results to page-locked memory.
void CudaRunner::CopyOutputs(const StepArgs& args, const CudaBatch& batch) {
  if (!makes_logits()) return;
  const size_t row_bytes = sizeof(float) * config_.vocab;
  const auto* logits = scratch_.product.as<std::byte>();
  for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
    cuda::CopyToHost(scratch_.logits.as<std::byte>() + i * row_bytes,
                     logits + batch.logits_rows[i] * row_bytes, row_bytes, device_.stream());
  }
  cuda::CopyToHost(scratch_.drawn.as<void>(), scratch_.sampled.as<void>(),
                   args.drawn.size() * sizeof(cuda::SampledRow), device_.stream());
  CopyHidden(batch);
}

// The hidden states come one behind the other. Those that lie so on the device are one copy.
void CudaRunner::CopyHidden(const CudaBatch& batch) {
  const auto row_bytes = static_cast<int64_t>(sizeof(Bf16)) * config_.hidden;
  auto* to = scratch_.hidden_states.as<std::byte>();
  for (size_t i = 0; i < batch.hidden.size();) {
    const int64_t first = batch.hidden[i].first;
    int64_t end = first;
    for (; i < batch.hidden.size() && batch.hidden[i].first == end; ++i) {
      end += batch.hidden[i].count;
    }
    const int64_t bytes = (end - first) * row_bytes;
    cuda::CopyToHost(to, scratch_.input.as<std::byte>() + first * row_bytes,
                     static_cast<size_t>(bytes), device_.stream());
    to += bytes;
  }
}

absl::Status CudaRunner::Outputs(const StepArgs& args, const CudaStep& step) {
  const CudaBatch& batch = step.batch;
  if (batch.mtp.rows().empty()) CopyOutputs(args, batch);  // FinishStep has not
  cuda::Synchronize(device_.stream());
  RETURN_IF_ERROR(cuda::TakeStatus("a step"));
  Collect(args, batch);
  return absl::OkStatus();
}

// Copies the results from page-locked memory to the caller's arrays.
void CudaRunner::Collect(const StepArgs& args, const CudaBatch& batch) {
  if (!makes_logits()) return;
  const size_t vocab = config_.vocab;
  for (size_t row = 0; row < batch.logits_rows.size(); ++row) {
    std::copy_n(scratch_.logits.as<float>() + row * vocab, vocab,
                args.logits.row(static_cast<int64_t>(row)));
  }
  const auto* sampled = scratch_.drawn.as<cuda::SampledRow>();
  for (DrawnToken& drawn : args.drawn) {
    drawn = {.id = sampled->id,
             .logit = sampled->logit,
             .max = sampled->max,
             .total_mass = sampled->total_mass};
    ++sampled;
  }
  CollectHidden(batch);
}

// Sums are made in the order of the tokens.
void CudaRunner::CollectHidden(const CudaBatch& batch) const {
  const auto width = static_cast<size_t>(config_.hidden);
  const Bf16* row = scratch_.hidden_states.as<Bf16>();
  for (const CudaHidden& hidden : batch.hidden) {
    for (int32_t i = 0; i < hidden.count; ++i, row += width) {
      for (size_t e = 0; e < hidden.sum.size(); ++e) hidden.sum[e] += ToFloat(row[e]);
    }
    std::ranges::transform(row - width, row - width + hidden.last.size(), hidden.last.begin(),
                           [](Bf16 x) { return ToFloat(x); });
  }
}

}  // namespace penstock
