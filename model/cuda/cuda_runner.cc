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

StepAngles AddAngles(AngleTable& table, const std::vector<int32_t>& positions, StepInputs& inputs) {
  const size_t pairs = table.pairs();
  if (pairs == 0) return {};
  std::vector<float> cosines, sines;
  cosines.reserve(positions.size() * pairs);
  sines.reserve(positions.size() * pairs);
  for (const int32_t position : positions) {
    const AngleTable::Angles angles = table.At(position);
    cosines.insert(cosines.end(), angles.cosines.begin(), angles.cosines.end());
    sines.insert(sines.end(), angles.sines.begin(), angles.sines.end());
  }
  return {.cosines = inputs.Add(cosines),
          .sines = inputs.Add(sines),
          .dims = static_cast<int32_t>(2 * pairs)};
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
  return {.layers = config_.layers,
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
  for (const CudaLayer& layer : weights_->layers) {
    for (const CudaMatrix* m : layer.Matrices()) {
      RETURN_IF_ERROR(options_.products->Check(m->weight));
    }
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
                                   .selects_pages = selector_ != nullptr && format.span == 0}));
  RETURN_IF_ERROR(CheckPages(args.kv));
  if (args.sequences.empty()) return absl::OkStatus();
  device_.Select();
  const cuda::library::PrefillShape prompts = this->prompts();
  CudaStep step(CudaBatch(args, config_.heads / config_.kv_heads,
                          options_.fast_prompts ? &prompts : nullptr,
                          selector_ != nullptr ? &selector_->known() : nullptr));
  RETURN_IF_ERROR(RunStep(args, step));
  if (step.batch.selecting.any()) step.batch.selecting.RememberIn(selector_->known(), args.kv);
  return absl::OkStatus();
}

absl::Status CudaRunner::RunStep(const StepArgs& args, CudaStep& step) {
  const bool by_graph = options_.graphs_max > 0 && !args.on_queries && step.batch.paddable();
  if (by_graph) return StepAsGraph(args, step);
  RETURN_IF_ERROR(Agree({.prepared = Prepare(args, step)}).prepared);
  if (args.on_queries) return StepObserved(args, step);
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
  const int32_t count = config_.layers;
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : count;
  BeginLayers(step);
  for (int32_t i = 0; i < count; ++i) {
    layers().AppendKv(i, step);
    const auto* queries = scratch_.queries.as<Bf16>();
    for (const RowRange& rows : observed) {
      observed_->Copy(queries, rows.first, rows.count, device_.stream());
    }
    observed_->Mark(device_.stream());
    if (FinishLayer(i, step) && i + 1 == count && makes_logits()) layers().Logits(step);
    if (i == 0 && args.meanwhile) args.meanwhile();
    const View<const float, 2> taken = observed_->Await(all.count);
    RETURN_IF_ERROR(cuda::TakeStatus("a step"));
    args.on_queries(i, taken);
    const bool reports = args.on_layers_done && ((i + 1) % group == 0 || i + 1 == count);
    if (reports) args.on_layers_done(i / group * group, i + 1);
  }
  return Outputs(args, step);
}

absl::Status CudaRunner::Prepare(const StepArgs& args, CudaStep& step) {
  CudaScratch& s = scratch_;
  const CudaBatch& batch = step.batch;
  StepInputs inputs;
  step.tokens = inputs.Add(batch.tokens);
  step.slots = inputs.Add(batch.slots);
  step.row_slots = inputs.Add(batch.row_slots);
  step.angles[static_cast<size_t>(LayerRope::kMain)] = AddAngles(s.angles, batch.positions, inputs);
  step.angles[static_cast<size_t>(LayerRope::kLocal)] =
      AddAngles(s.local_angles, batch.positions, inputs);
  if (weights_->positions.bytes() > 0) step.positions = inputs.Add(batch.positions);
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

// Sets what the layers change, for the first of them, and embeds the tokens. A step whose capture
// was refused is enqueued again.
void CudaRunner::BeginLayers(CudaStep& step) {
  step.attention = &step.batch.all;
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
  if (!batch.hidden.empty()) {
    RETURN_IF_ERROR(Grow(s.hidden_states, batch.last_rows.size() * config_.hidden * sizeof(Bf16),
                         "hidden states"));
  }
  RETURN_IF_ERROR(Grow(s.logits, batch.logits_rows.size() * row_bytes, "logits"));
  const size_t draws_bytes = batch.draws.size() * sizeof(cuda::SampledRow);
  const auto draws = static_cast<int>(batch.draws.size());
  RETURN_IF_ERROR(Grow(s.draws, cuda::SampleScratchBytes(draws), "draws"));
  RETURN_IF_ERROR(Grow(s.sampled, draws_bytes, "drawn tokens"));
  return Grow(s.drawn, draws_bytes, "drawn tokens");
}

void CudaRunner::Enqueue(const StepArgs& args, CudaStep& step) {
  auto& group_done = scratch_.group_done;
  const CudaLayers layers = this->layers();
  BeginLayers(step);
  const int32_t count = config_.layers;
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : count;
  size_t groups = 0;
  for (int32_t i = 0; i < count; ++i) {
    layers.AppendKv(i, step);
    if (args.on_layers_done && ((i + 1) % group == 0 || i + 1 == count)) {
      if (group_done.size() == groups) group_done.push_back(std::make_unique<CudaEvent>());
      cuda::RecordEvent(group_done[groups++]->get(), device_.stream());
    }
    if (!FinishLayer(i, step)) return;
  }
  if (makes_logits()) layers.Logits(step);
}

// Enqueues what follows a layer's keys and values. Returns false if no row needs it: in the last
// layer only those with logits or draws do.
bool CudaRunner::FinishLayer(int32_t layer, CudaStep& step) {
  const CudaLayers layers = this->layers();
  if (layer + 1 == config_.layers) {
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
  const int32_t layers = config_.layers, copies = args.kv.layout.Copies();
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  size_t index = 0;
  for (int32_t first = 0; first < layers; first += group) {
    cuda::SynchronizeEvent(scratch_.group_done[index++]->get());
    RETURN_IF_ERROR(cuda::TakeStatus("a step"));  // before a sender reads pages that are incomplete
    args.on_layers_done(copies * first, copies * std::min(first + group, layers));
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::Outputs(const StepArgs& args, const CudaStep& step) {
  const CudaBatch& batch = step.batch;
  const size_t row_bytes = sizeof(float) * config_.vocab;
  if (makes_logits()) {
    const auto* logits = scratch_.product.as<std::byte>();
    for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
      cuda::CopyToHost(scratch_.logits.as<std::byte>() + i * row_bytes,
                       logits + batch.logits_rows[i] * row_bytes, row_bytes, device_.stream());
    }
    cuda::CopyToHost(scratch_.drawn.as<void>(), scratch_.sampled.as<void>(),
                     args.drawn.size() * sizeof(cuda::SampledRow), device_.stream());
    if (!batch.hidden.empty()) {
      cuda::CopyToHost(scratch_.hidden_states.as<void>(), scratch_.input.as<void>(),
                       batch.last_rows.size() * config_.hidden * sizeof(Bf16), device_.stream());
    }
  }
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
  for (const CudaHidden& hidden : batch.hidden) {
    const Bf16* row = scratch_.hidden_states.as<Bf16>() + static_cast<size_t>(hidden.first) * width;
    for (int32_t i = 0; i < hidden.count; ++i, row += width) {
      for (size_t e = 0; e < hidden.sum.size(); ++e) hidden.sum[e] += ToFloat(row[e]);
    }
    std::ranges::transform(row - width, row - width + hidden.last.size(), hidden.last.begin(),
                           [](Bf16 x) { return ToFloat(x); });
  }
}

}  // namespace penstock
