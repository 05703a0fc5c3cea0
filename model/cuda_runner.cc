#include "model/cuda_runner.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/row_ops.h"
#include "model/cuda_batch.h"
#include "model/cuda_inputs.h"
#include "model/rope_angles.h"
#include "model/step_check.h"

namespace penstock {
namespace {

template <class AnyBuffer>
absl::Status Grow(AnyBuffer& buffer, size_t bytes, const char* what) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  buffer = AnyBuffer();
  ASSIGN_OR_RETURN(buffer, AnyBuffer::Create(bytes, what));
  return absl::OkStatus();
}

std::vector<int32_t> Windows(const ModelConfig& config) {
  std::vector<int32_t> windows = config.sliding_window;
  if (windows.empty()) windows.push_back(0);
  std::ranges::sort(windows);
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

class Event {
 public:
  Event() : event_(cuda::CreateEvent()) {}
  ~Event() { cuda::DestroyEvent(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void* get() const { return event_; }

 private:
  void* event_;
};

}  // namespace

struct CudaRunner::Scratch {
  std::vector<float> frequencies;
  std::vector<int32_t> windows;
  cuda::DeviceBuffer residual, last_residual;  // f32 [tokens][hidden]
  cuda::DeviceBuffer input;                    // bf16, of a product
  cuda::DeviceBuffer queries, last_queries;    // bf16 [tokens][heads * head_dim]
  cuda::DeviceBuffer product;                  // f32 slices
  cuda::DeviceBuffer inputs;                   // StepInputs
  cuda::DeviceBuffer partials, stats;          // of split attention
  cuda::PinnedBuffer logits;                   // f32 slices
  std::vector<std::unique_ptr<Event>> group_done;
};

struct CudaRunner::StepState {
  explicit StepState(CudaBatch of) : batch(std::move(of)) {}

  template <class T>
  const T* At(size_t offset) const {
    return reinterpret_cast<const T*>(inputs + offset);
  }

  CudaBatch batch;
  const std::byte* inputs = nullptr;
  size_t tokens = 0, slots = 0, cosines = 0, sines = 0, last_rows = 0;
  AttentionInputs all_at, last_at;
  PagedKv kv;
  // What the rest of the layer works on: every row, and at the end the last ones alone.
  const CudaAttention* attention = nullptr;
  const AttentionInputs* attention_at = nullptr;
  float* residual = nullptr;
  Bf16* queries = nullptr;
};

CudaRunner::CudaRunner(const Weights& weights, cuda::CudaDevice& device, const Options& options)
    : config_(weights.config),
      device_(device),
      options_(options),
      scratch_(std::make_unique<Scratch>()) {}

CudaRunner::~CudaRunner() { cuda::Synchronize(device_.stream()); }

int32_t CudaRunner::vocab() const { return config_.vocab; }
int32_t CudaRunner::max_position() const { return config_.max_position; }
KvLayout CudaRunner::kv_layout() const {
  return {.layers = config_.layers, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim};
}

size_t CudaRunner::device_bytes() const {
  const Scratch& s = *scratch_;
  return weights_->bytes() + s.residual.bytes() + s.last_residual.bytes() + s.input.bytes() +
         s.queries.bytes() + s.last_queries.bytes() + s.product.bytes() + s.inputs.bytes() +
         s.partials.bytes() + s.stats.bytes();
}

absl::StatusOr<std::unique_ptr<CudaRunner>> CudaRunner::Create(const Weights& weights,
                                                               cuda::CudaDevice& device,
                                                               const Options& options) {
  std::unique_ptr<CudaRunner> runner(new CudaRunner(weights, device, options));
  if (!cuda::SupportsKv({.head_dim = weights.config.head_dim})) {
    return FailedPrecondition(
        "head_dim is {}; the CUDA kernels take 64 and 128, --device=cpu does without",
        weights.config.head_dim);
  }
  ASSIGN_OR_RETURN(runner->weights_, CudaWeights::Upload(weights, device.stream()));
  RETURN_IF_ERROR(runner->Allocate());
  return runner;
}

size_t CudaRunner::LogitsBytes(size_t rows) const {
  return sizeof(float) * cuda::SkinnySlices(weights_->lm_head.weight) * rows * config_.vocab;
}

absl::Status CudaRunner::Allocate() {
  Scratch& s = *scratch_;
  s.frequencies = RopeFrequencies(config_.rope, config_.head_dim);
  s.windows = Windows(config_);
  const size_t rows = options_.max_step_tokens, hidden = config_.hidden;
  const size_t query_width = size_t{1} * config_.heads * config_.head_dim;
  size_t input_width = std::max(hidden, query_width), product = 0;
  for (const CudaLayer& layer : weights_->layers) {
    input_width = std::max<size_t>(input_width, layer.down.weight.inputs);
    for (const CudaMatrix* m : {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down}) {
      product = std::max<size_t>(
          product, size_t{1} * cuda::SkinnySlices(m->weight) * rows * m->weight.outputs);
    }
  }
  RETURN_IF_ERROR(Grow(s.residual, rows * hidden * sizeof(float), "residual"));
  RETURN_IF_ERROR(Grow(s.last_residual, rows * hidden * sizeof(float), "residual"));
  RETURN_IF_ERROR(Grow(s.input, rows * input_width * sizeof(Bf16), "activations"));
  RETURN_IF_ERROR(Grow(s.queries, rows * query_width * sizeof(Bf16), "queries"));
  RETURN_IF_ERROR(Grow(s.last_queries, rows * query_width * sizeof(Bf16), "queries"));
  return Grow(s.product, product * sizeof(float), "products");
}

absl::Status CudaRunner::Step(const StepArgs& args) {
  RETURN_IF_ERROR(CheckStep(args, {.layout = kv_layout(),
                                   .vocab = vocab(),
                                   .max_position = max_position(),
                                   .max_tokens = options_.max_step_tokens}));
  const cuda::KvPlanes planes = cuda::PlanesOf(args.kv, 0);
  if (!cuda::SupportsKv(planes) || 1 << planes.page_log2 != args.kv.layout.block_tokens) {
    return InvalidArgument(
        "kv.layout has blocks of {} tokens in {}; the CUDA kernels take powers of two from 16 to "
        "1,024",
        args.kv.layout.block_tokens, KvDtypeName(args.kv.layout.dtype));
  }
  if (args.sequences.empty()) return absl::OkStatus();
  device_.Select();
  StepState state(CudaBatch(args, {.group = config_.heads / config_.kv_heads,
                                   .windows = scratch_->windows,
                                   .exact = options_.exact}));
  RETURN_IF_ERROR(Prepare(args, state));
  RETURN_IF_ERROR(Enqueue(args, state));
  RETURN_IF_ERROR(ReportLayers(args));
  return Logits(args, state);
}

absl::Status CudaRunner::Prepare(const StepArgs& args, StepState& state) {
  Scratch& s = *scratch_;
  const CudaBatch& batch = state.batch;
  const int32_t half = config_.head_dim / 2;
  std::vector<float> cosines(batch.positions.size() * half), sines(cosines.size());
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    RopeAngles(s.frequencies, config_.rope.attention_factor, batch.positions[i],
               cosines.data() + i * half, sines.data() + i * half);
  }
  StepInputs inputs;
  state.tokens = inputs.Add(batch.tokens);
  state.slots = inputs.Add(batch.slots);
  state.cosines = inputs.Add(cosines);
  state.sines = inputs.Add(sines);
  state.last_rows = inputs.Add(batch.last_rows);
  state.all_at = AddAttention(batch.all, inputs);
  state.last_at = AddAttention(batch.last, inputs);
  RETURN_IF_ERROR(Grow(s.inputs, inputs.bytes().size(), "inputs of a step"));
  cuda::CopyToDevice(s.inputs.as<void>(), inputs.bytes().data(), inputs.bytes().size(),
                     device_.stream());

  int32_t splits = 1;
  for (const cuda::DecodePlan& plan : batch.all.decode) splits = std::max(splits, plan.max_splits);
  const size_t partials = size_t{1} * batch.all.decodes() * config_.heads * splits;
  RETURN_IF_ERROR(Grow(s.partials, partials * config_.head_dim * sizeof(float), "split attention"));
  RETURN_IF_ERROR(Grow(s.stats, partials * 2 * sizeof(float), "split attention"));
  const size_t logits_bytes = LogitsBytes(batch.last_rows.size());
  RETURN_IF_ERROR(Grow(s.product, logits_bytes, "logits"));
  RETURN_IF_ERROR(Grow(s.logits, logits_bytes, "logits"));

  state.inputs = s.inputs.as<std::byte>();
  state.kv = args.kv;
  state.attention = &batch.all;
  state.attention_at = &state.all_at;
  state.residual = s.residual.as<float>();
  state.queries = s.queries.as<Bf16>();
  return absl::OkStatus();
}

absl::Status CudaRunner::Enqueue(const StepArgs& args, StepState& state) {
  Scratch& s = *scratch_;
  const bool tied = weights_->embedding.bytes() == 0;
  cuda::Embedding({.tokens = state.At<uint32_t>(state.tokens),
                   .table = tied ? weights_->lm_head.weight.data : weights_->embedding.as<Bf16>(),
                   .output = state.residual,
                   .hidden = config_.hidden},
                  state.attention->rows, device_.stream());
  const int32_t layers = config_.layers;
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  size_t groups = 0;
  for (int32_t i = 0; i < layers; ++i) {
    AppendKv(i, state);
    if (args.on_layers_done && ((i + 1) % group == 0 || i + 1 == layers)) {
      if (s.group_done.size() == groups) s.group_done.push_back(std::make_unique<Event>());
      cuda::RecordEvent(s.group_done[groups++]->get(), device_.stream());
    }
    if (i + 1 == layers) {
      // Beyond its keys and values, the last layer matters only where logits are wanted.
      if (state.batch.last_rows.empty()) break;
      KeepLastRows(state);
    }
    Attend(i, state);
    FinishLayer(weights_->layers[i], state);
  }
  return cuda::TakeStatus("enqueueing a step");
}

// Tells of groups of layers as the device is done with them, while it goes on with later ones.
absl::Status CudaRunner::ReportLayers(const StepArgs& args) {
  if (!args.on_layers_done) return absl::OkStatus();
  const int32_t layers = config_.layers;
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  size_t index = 0;
  for (int32_t first = 0; first < layers; first += group) {
    cuda::SynchronizeEvent(scratch_->group_done[index++]->get());
    RETURN_IF_ERROR(cuda::TakeStatus("a step"));  // before anybody sends what is not there
    args.on_layers_done(first, std::min(first + group, layers));
  }
  return absl::OkStatus();
}

void CudaRunner::AppendKv(int32_t layer, const StepState& state) {
  Scratch& s = *scratch_;
  const CudaLayer& w = weights_->layers[layer];
  const int32_t rows = state.attention->rows;
  cuda::AddRmsNorm({.residual = state.residual,
                    .weight = w.attention_norm.as<float>(),
                    .output = s.input.as<Bf16>(),
                    .hidden = config_.hidden,
                    .epsilon = config_.norm_epsilon},
                   rows, device_.stream());
  cuda::Product qkv = cuda::SkinnyGemm(w.qkv.weight, s.input.as<Bf16>(), rows,
                                       s.product.as<float>(), device_.stream());
  qkv.bias = w.qkv.bias;
  cuda::RopeAppend({.product = qkv,
                    .cosines = state.At<float>(state.cosines),
                    .sines = state.At<float>(state.sines),
                    .query_norm = w.q_norm.as<float>(),
                    .key_norm = w.k_norm.as<float>(),
                    .epsilon = config_.norm_epsilon,
                    .queries = s.queries.as<Bf16>(),
                    .heads = config_.heads,
                    .rows = rows,
                    .kv = cuda::PlanesOf(state.kv, layer),
                    .slots = state.At<int64_t>(state.slots)},
                   device_.stream());
}

// The rows whose logits are wanted become the only ones.
void CudaRunner::KeepLastRows(StepState& state) {
  Scratch& s = *scratch_;
  const auto rows = static_cast<int>(state.batch.last_rows.size());
  const auto* from = state.At<int32_t>(state.last_rows);
  const int32_t query_words = config_.heads * config_.head_dim / 2;
  cuda::GatherRows({.input = s.residual.as<uint32_t>(),
                    .output = s.last_residual.as<uint32_t>(),
                    .from = from,
                    .width = config_.hidden},
                   rows, device_.stream());
  cuda::GatherRows({.input = s.queries.as<uint32_t>(),
                    .output = s.last_queries.as<uint32_t>(),
                    .from = from,
                    .width = query_words},
                   rows, device_.stream());
  state.attention = &state.batch.last;
  state.attention_at = &state.last_at;
  state.residual = s.last_residual.as<float>();
  state.queries = s.last_queries.as<Bf16>();
}

void CudaRunner::Attend(int32_t layer, const StepState& state) {
  Scratch& s = *scratch_;
  const CudaAttention& a = *state.attention;
  const AttentionInputs& at = *state.attention_at;
  const int32_t window = config_.sliding_window.empty() ? 0 : config_.sliding_window[layer];
  const auto index =
      static_cast<size_t>(std::ranges::lower_bound(s.windows, window) - s.windows.begin());
  const int64_t width = int64_t{config_.heads} * config_.head_dim;
  const int32_t group = config_.heads / config_.kv_heads;
  const float scale_log2 = 1.44269504f / std::sqrt(static_cast<float>(config_.head_dim));
  const cuda::KvPlanes kv = cuda::PlanesOf(state.kv, layer);
  const auto* tables = state.At<uint32_t>(at.tables);
  if (a.decodes() > 0) {
    const cuda::DecodePlan& plan = a.decode[index];
    cuda::DecodeAttention({.queries = state.queries,
                           .query_stride = width,
                           .output = s.input.as<Bf16>(),
                           .output_stride = width,
                           .kv = kv,
                           .tables = tables,
                           .table_stride = a.table_stride,
                           .lengths = state.At<int32_t>(at.lengths),
                           .items = state.At<cuda::DecodeItem>(at.items[index]),
                           .split_counts = state.At<int32_t>(at.split_counts[index]),
                           .max_splits = plan.max_splits,
                           .partial_outputs = s.partials.as<float>(),
                           .partial_stats = s.stats.as<float>(),
                           .heads = config_.heads,
                           .group = group,
                           .window = window,
                           .scale_log2 = scale_log2},
                          static_cast<int>(plan.items.size()), a.decodes(), device_.stream());
  }
  if (!a.tiles.empty()) {
    cuda::PrefillAttention({.queries = state.queries,
                            .query_stride = width,
                            .output = s.input.as<Bf16>(),
                            .output_stride = width,
                            .kv = kv,
                            .tables = tables + a.decodes() * a.table_stride,
                            .table_stride = a.table_stride,
                            .sequences = state.At<cuda::PrefillSequence>(at.prefills),
                            .tiles = state.At<cuda::PrefillTile>(at.tiles),
                            .group = group,
                            .window = window,
                            .scale_log2 = scale_log2},
                           static_cast<int>(a.tiles.size()), device_.stream());
  }
}

void CudaRunner::FinishLayer(const CudaLayer& layer, const StepState& state) {
  Scratch& s = *scratch_;
  const int32_t rows = state.attention->rows;
  const auto multiply = [&](const CudaMatrix& matrix) {
    cuda::Product product = cuda::SkinnyGemm(matrix.weight, s.input.as<Bf16>(), rows,
                                             s.product.as<float>(), device_.stream());
    product.bias = matrix.bias;
    return product;
  };
  cuda::NormParams norm{.residual = state.residual,
                        .product = multiply(layer.attention_output),
                        .weight = layer.mlp_norm.as<float>(),
                        .output = s.input.as<Bf16>(),
                        .hidden = config_.hidden,
                        .epsilon = config_.norm_epsilon};
  cuda::AddRmsNorm(norm, rows, device_.stream());
  cuda::SiluGate({.product = multiply(layer.gate_up), .output = s.input.as<Bf16>()}, rows,
                 device_.stream());
  norm.product = multiply(layer.down);
  norm.weight = nullptr;  // the next layer's norm is its own
  cuda::AddRmsNorm(norm, rows, device_.stream());
}

absl::Status CudaRunner::Logits(const StepArgs& args, const StepState& state) {
  Scratch& s = *scratch_;
  const auto rows = static_cast<int>(state.batch.last_rows.size());
  if (rows > 0) {
    cuda::AddRmsNorm({.residual = state.residual,
                      .weight = weights_->final_norm.as<float>(),
                      .output = s.input.as<Bf16>(),
                      .hidden = config_.hidden,
                      .epsilon = config_.norm_epsilon},
                     rows, device_.stream());
    const cuda::Product logits = cuda::SkinnyGemm(weights_->lm_head.weight, s.input.as<Bf16>(),
                                                  rows, s.product.as<float>(), device_.stream());
    cuda::CopyToHost(s.logits.as<void>(), logits.data, LogitsBytes(rows), device_.stream());
  }
  cuda::Synchronize(device_.stream());
  RETURN_IF_ERROR(cuda::TakeStatus("a step"));
  const int slices = cuda::SkinnySlices(weights_->lm_head.weight);
  for (int r = 0; r < rows; ++r) {
    float* target = args.logits.row(state.batch.logits_row[r]);
    std::fill_n(target, config_.vocab, 0.0f);
    for (int slice = 0; slice < slices; ++slice) {
      const float* from =
          s.logits.as<float>() + (int64_t{slice} * rows + r) * int64_t{config_.vocab};
      for (int32_t i = 0; i < config_.vocab; ++i) target[i] += from[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
