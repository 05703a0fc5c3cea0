#include "model/cuda/cuda_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/latents/latents.h"
#include "kernels/selection/page_bounds.h"
#include "model/cuda/cuda_model_check.h"
#include "model/cuda/prompts/fast_check.h"
#include "model/forward/blended_rows.h"
#include "model/forward/step_check.h"
#include "model/weights/page_layout.h"

namespace penstock {

CudaRunner::CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options)
    : config_(options.shard.Of(weights.config)),
      device_(device),
      options_(options),
      graphs_(options.graphs_max, device.stream(), options.exchange) {}

CudaRunner::~CudaRunner() { cuda::Synchronize(device_.stream()); }

int32_t CudaRunner::vocab() const { return config_.vocab; }
int32_t CudaRunner::max_position() const { return config_.max_position; }
KvLayout CudaRunner::kv_layout() const { return PageLayoutOf(config_); }

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

// A GPU blends where a CPU does, but not with other GPUs, nor beside evictions, whose steps wait
// for their queries, nor with the library's attention, whose bits depend on where a prompt ends.
absl::Status CudaRunner::AllocateBlends() {
  const bool other = options_.exchange != nullptr || options_.evicts || options_.fast_prompts;
  if (other || !CanBlend(config_) || weights_->positions.bytes() > 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(blend_,
                   CudaBlend::Create(device_, {.angles = {&scratch_.angles, &scratch_.local_angles},
                                               .angles_of = RotationsOfLayers(config_),
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

CudaBatch CudaRunner::BatchOf(const StepArgs& args, bool joins) const {
  const cuda::library::PrefillShape prompts = this->prompts();
  return {args,
          config_.hidden,
          config_.heads / config_.kv_heads,
          {.prompts = options_.fast_prompts ? &prompts : nullptr,
           .known = selector_ != nullptr ? &selector_->known() : nullptr,
           .joins = joins}};
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
