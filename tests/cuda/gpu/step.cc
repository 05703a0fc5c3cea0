// A decode step by the kernels that CudaRunner enqueues, with and without a graph, against the time
// that reading its weights and KV takes at the measured bandwidth.

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/sample.h"
#include "tests/cuda/cases/kv_pool_case.h"
#include "tests/cuda/gpu/random_memory.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

constexpr int32_t kDim = 128;

struct StepShape {
  int32_t layers = 32, hidden = 4096, heads = 32, kv_heads = 8, intermediate = 14336;
  int32_t vocabulary = 128256;
  int32_t sequences = 16, length = 4096;

  int64_t qkv_width() const { return int64_t{heads + 2 * kv_heads} * kDim; }
  int64_t query_width() const { return int64_t{heads} * kDim; }
  int32_t pages() const { return (length + 15) / 16; }
  size_t layer_weights() const {
    return static_cast<size_t>(hidden) * (qkv_width() + query_width() + 3 * intermediate);
  }
  size_t weights() const { return layers * layer_weights() + size_t{1} * vocabulary * hidden; }
  size_t widest() const { return std::max<size_t>(2 * intermediate, vocabulary); }
};

template <class T>
std::vector<T> Counting(size_t size) {
  std::vector<T> values(size);
  std::iota(values.begin(), values.end(), T{0});
  return values;
}

KvPlanes PlanesOfLayer(const StepShape& s, int32_t layer, std::byte* base) {
  return PlanesOfCodes({.kv_heads = s.kv_heads, .head_dim = kDim, .layers = s.layers}, layer, base);
}

class StepBench {
 public:
  explicit StepBench(const StepShape& shape)
      : s_(shape),
        sequences_(Sequences()),
        plan_(PlanAttention(sequences_, shape.heads / shape.kv_heads)),
        weights_(2 * shape.weights()),
        pool_(static_cast<size_t>(PlanesOfLayer(shape, 0, nullptr).block_stride) * shape.pages() *
              shape.sequences),
        tokens_(Counting<uint32_t>(shape.sequences)),
        tables_(Counting<uint32_t>(size_t{1} * shape.pages() * shape.sequences)),
        device_sequences_(sequences_),
        narrow_(plan_.narrow),
        items_(plan_.items),
        slots_(Slots()),
        draws_(Draws()),
        sampled_(std::vector<SampledRow>(shape.sequences)),
        draw_scratch_(SampleScratchBytes(shape.sequences)),
        residual_(size_t{1} * shape.sequences * shape.hidden),
        norm_(std::vector<float>(shape.hidden, 0.01f)),
        product_(size_t{8} * shape.sequences * shape.widest()),
        angles_(std::vector<float>(size_t{1} * shape.sequences * kDim / 2, 0.7f)),
        shares_(NarrowScratchBytes(plan_.shares, shape.kv_heads, kDim) / sizeof(float) + 1),
        input_(size_t{1} * shape.sequences * shape.intermediate),
        queries_(static_cast<size_t>(shape.sequences * shape.query_width())) {
    Synchronize(nullptr);  // steps are on a stream that does not wait for this one
  }

  void Enqueue(void* stream) {
    next_weight_ = 0;
    const size_t table = s_.weights() - size_t{1} * s_.vocabulary * s_.hidden;
    Embedding({.tokens = tokens_.data(),
               .table = weights_.bf16() + table,
               .output = residual_.data(),
               .hidden = s_.hidden},
              s_.sequences, stream);
    for (int32_t layer = 0; layer < s_.layers; ++layer) Layer(layer, stream);
    AddNorm(to_add_, stream);
    to_add_ = {};
    Product logits = Multiply(s_.vocabulary, s_.hidden, stream);
    SumSlices({.product = logits, .output = product_.data()}, s_.sequences, stream);
    Sample({.logits = product_.data(),
            .vocabulary = s_.vocabulary,
            .draws = draws_.data(),
            .sampled = sampled_.data(),
            .scratch = draw_scratch_.data()},
           s_.sequences, stream);
  }

  // The bytes of weights, keys and values.
  double bytes() const {
    const double tokens = static_cast<double>(s_.sequences) * s_.length;
    return 2.0 * static_cast<double>(s_.weights()) + tokens * s_.layers * s_.kv_heads * kDim * 4;
  }
  std::vector<float> residual() const { return residual_.Read(); }
  std::vector<SampledRow> sampled() const { return sampled_.Read(); }

 private:
  std::vector<AttentionSequence> Sequences() const {
    std::vector<AttentionSequence> sequences;
    for (int32_t i = 0; i < s_.sequences; ++i) {
      sequences.push_back({.first_row = i, .rows = 1, .position = s_.length - 1});
    }
    return sequences;
  }
  std::vector<int64_t> Slots() const {
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < s_.sequences; ++i) {
      slots.push_back(int64_t{i} * s_.pages() * 16 + s_.length - 1);
    }
    return slots;
  }
  std::vector<SampleRow> Draws() const {
    std::vector<SampleRow> draws;
    for (int32_t i = 0; i < s_.sequences; ++i) {
      draws.push_back({.logits_row = i, .steepness = 46.0, .top_k = 50, .random = ~0ull / (i + 1)});
    }
    return draws;
  }

  Product Multiply(int64_t outputs, int32_t inputs, void* stream) {
    const Weight weight{.data = weights_.bf16() + next_weight_,
                        .outputs = static_cast<int32_t>(outputs),
                        .inputs = inputs};
    next_weight_ += static_cast<size_t>(outputs) * inputs;
    return Gemm(weight, input_.data(), s_.sequences, product_.data(), stream);
  }
  void AddNorm(const Product& product, void* stream) {
    cuda::AddNorm({.residual = residual_.data(),
                   .product = product,
                   .weight = norm_.data(),
                   .output = input_.data(),
                   .hidden = s_.hidden},
                  s_.sequences, stream);
  }

  void Layer(int32_t layer, void* stream) {
    const KvPlanes planes = PlanesOfLayer(s_, layer, pool_.data());
    AddNorm(to_add_, stream);
    RopeAppend({.product = Multiply(s_.qkv_width(), s_.hidden, stream),
                .cosines = angles_.data(),
                .sines = angles_.data(),
                .queries = queries_.data(),
                .heads = s_.heads,
                .rows = s_.sequences,
                .rotary_dims = planes.head_dim,
                .kv = planes,
                .slots = slots_.data()},
               stream);
    Attention({.queries = queries_.data(),
               .query_stride = s_.query_width(),
               .output = input_.data(),
               .output_stride = s_.query_width(),
               .kv = planes,
               .tables = tables_.data(),
               .table_stride = s_.pages(),
               .sequences = device_sequences_.data(),
               .narrow = narrow_.data(),
               .items = items_.data(),
               .narrow_scratch = shares_.data(),
               .group = s_.heads / s_.kv_heads,
               .scale_log2 = 0.1275f},
              plan_.counts(), stream);
    AddNorm(Multiply(s_.hidden, static_cast<int32_t>(s_.query_width()), stream), stream);
    SiluGate({.product = Multiply(2 * s_.intermediate, s_.hidden, stream), .output = input_.data()},
             s_.sequences, stream);
    to_add_ = Multiply(s_.hidden, s_.intermediate, stream);
  }

  const StepShape s_;
  const std::vector<AttentionSequence> sequences_;
  const AttentionPlan plan_;
  const RandomMemory weights_;  // of each layer, then the embedding, which is the output's too
  const RandomMemory pool_;
  size_t next_weight_ = 0;
  Product to_add_;  // what the residual still lacks of the layer before
  DeviceArray<uint32_t> tokens_, tables_;
  DeviceArray<AttentionSequence> device_sequences_;
  DeviceArray<AttentionTile> narrow_;
  DeviceArray<SplitItem> items_;
  DeviceArray<int64_t> slots_;
  DeviceArray<SampleRow> draws_;
  DeviceArray<SampledRow> sampled_;
  DeviceArray<std::byte> draw_scratch_;
  DeviceArray<float> residual_, norm_, product_, angles_, shares_;
  DeviceArray<Bf16> input_, queries_;
};

void* GraphOf(StepBench& bench, void* stream) {
  BeginCapture(stream);
  bench.Enqueue(stream);
  void* graph = EndCapture(stream);
  ExpectNoDeviceError("a graph of a step");
  return graph;
}

}  // namespace

bool StepIsTheSameAsAGraph() {
  StepBench bench({.layers = 2,
                   .hidden = 256,
                   .heads = 4,
                   .kv_heads = 2,
                   .intermediate = 512,
                   .vocabulary = 300,
                   .sequences = 3,
                   .length = 300});
  void* stream = CreateStream(true);
  bench.Enqueue(stream);
  Synchronize(stream);
  const std::vector<float> want = bench.residual();
  const std::vector<SampledRow> drawn = bench.sampled();
  void* graph = GraphOf(bench, stream);
  bool same = true;
  for (int run = 0; run < 2; ++run) {
    LaunchGraph(graph, stream);
    Synchronize(stream);
    const std::vector<SampledRow> again = bench.sampled();
    for (size_t i = 0; i < drawn.size(); ++i) same = same && again[i].id == drawn[i].id;
    same = same && bench.residual() == want;
  }
  DestroyGraph(graph);
  DestroyStream(stream);
  return same;
}

void MeasureStep(double ceiling, Report& report) {
  for (const int32_t sequences : {1, 16}) {
    const StepShape shape{.sequences = sequences};
    StepBench bench(shape);
    void* stream = CreateStream(true);
    void* graph = GraphOf(bench, stream);
    const auto measure = [&](const char* how, double goal, const std::function<void()>& enqueue) {
      const double us = MedianUs(enqueue, stream);
      report.measurements.push_back({.name = std::string("step ") + std::to_string(sequences) +
                                             " x " + std::to_string(shape.length) + how,
                                     .median_us = us,
                                     .rate = bench.bytes() / us / 1e3,
                                     .unit = "GB/s",
                                     .ceiling = ceiling,
                                     .goal = goal});
    };
    measure(", launches", 0, [&] { bench.Enqueue(stream); });
    measure(", graph", 0.80, [&] { LaunchGraph(graph, stream); });
    DestroyGraph(graph);
    DestroyStream(stream);
  }
}

}  // namespace penstock::cuda
