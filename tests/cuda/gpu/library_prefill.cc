#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/library/prefill.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/gpu/library_kernels.h"
#include "tests/cuda/gpu/library_suite.h"
#include "tests/cuda/gpu/timing.h"

namespace penstock::cuda {
namespace {

using library::PrefillCall;
using library::PrefillRows;
using Sequences = std::vector<PrefillRows>;

struct Model {
  int32_t kv_heads = 8;
  int32_t group = 4;
  int32_t head_dim = 128;
  int32_t page = 16;
  int32_t window = 0;

  int32_t heads() const { return kv_heads * group; }
  int64_t width() const { return int64_t{heads()} * head_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
  std::string Name() const {
    return "library prefill d" + std::to_string(head_dim) + " group " + std::to_string(group) +
           " page " + std::to_string(page) + " window " + std::to_string(window);
  }
};

std::vector<uint32_t> Shuffled(int pages) {
  std::vector<uint32_t> blocks(pages);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(2));
  return blocks;
}

KvPlanes PlanesFor(const Model& model, std::byte* layer) {
  const int32_t plane = model.page * model.head_dim * 2;
  KvPlanes planes{.layer = layer,
                  .block_stride = int64_t{2} * plane * model.kv_heads,
                  .keys = {.head_stride = 2 * plane, .row_bytes = 2 * model.head_dim},
                  .kv_heads = model.kv_heads,
                  .head_dim = model.head_dim,
                  .page_log2 = 0};
  planes.values = planes.keys;
  planes.values.offset = plane;
  while ((1 << planes.page_log2) < model.page) ++planes.page_log2;
  return planes;
}

// The pages of some sequences, dealt at random. What belongs to no token is NaN.
class Pages {
 public:
  Pages(const Model& model, const std::vector<int32_t>& lengths)
      : stride_((*std::ranges::max_element(lengths) + model.page - 1) / model.page),
        pool_(static_cast<size_t>(PlanesFor(model, nullptr).block_stride) * stride_ *
              lengths.size()),
        tables_(Shuffled(stride_ * static_cast<int>(lengths.size()))),
        planes_(PlanesFor(model, pool_.data())) {
    const DeviceArray<int32_t> device_lengths(lengths);
    FillTokens(planes_, tables_.data(), stride_, device_lengths.data(),
               static_cast<int>(lengths.size()), 3);
    Synchronize(nullptr);
    ExpectNoDeviceError("filling pages");
  }
  const KvPlanes& planes() const { return planes_; }
  const uint32_t* tables() const { return tables_.data(); }
  int32_t stride() const { return stride_; }

 private:
  int32_t stride_;  // of the tables
  DeviceArray<std::byte> pool_;
  DeviceArray<uint32_t> tables_;
  KvPlanes planes_;
};

int32_t RowsOf(const Sequences& sequences) {
  int32_t rows = 0;
  for (const PrefillRows& s : sequences) rows = std::max(rows, s.first_row + s.rows);
  return rows;
}

// A step of the library's kernel, with its plan on the device.
class LibraryStep {
 public:
  LibraryStep(const Model& model, const Pages& pages, const Sequences& sequences, int processors,
              const Bf16* queries, Bf16* output)
      : shape_{.heads = model.heads(),
               .head_dim = model.head_dim,
               .window = model.window,
               .table_stride = pages.stride(),
               .processors = processors},
        plan_(library::PlanPrefill(sequences, shape_)),
        words_(plan_.words),
        call_{.queries = queries,
              .query_stride = model.width(),
              .output = output,
              .output_stride = model.width(),
              .rows = RowsOf(sequences),
              .kv = pages.planes(),
              .tables = pages.tables(),
              .shape = shape_,
              .plan = words_.data(),
              .items = plan_.items,
              .scale = model.scale()} {}

  void Launch() const { library::LaunchPrefill(call_, nullptr); }
  void Run() const {
    Launch();
    Synchronize(nullptr);
    ExpectNoDeviceError("the library's prefill attention");
  }
  const PrefillCall& call() const { return call_; }

 private:
  library::PrefillShape shape_;
  library::PrefillPlan plan_;
  DeviceArray<int32_t> words_;
  PrefillCall call_;
};

// The same step of ours.
class OurStep {
 public:
  OurStep(const Model& model, const PrefillCall& call, const Sequences& sequences)
      : plan_(PlanAttention(ToOurs(sequences), model.group)),
        sequences_(ToOurs(sequences)),
        wide_(plan_.wide),
        narrow_(plan_.narrow),
        items_(plan_.items),
        wide_scratch_(WideScratchBytes(plan_.wide.size(), call.kv.kv_heads, model.head_dim)),
        narrow_scratch_(NarrowScratchBytes(plan_.shares, call.kv.kv_heads, model.head_dim)),
        params_{.queries = call.queries,
                .query_stride = call.query_stride,
                .output = call.output,
                .output_stride = call.output_stride,
                .kv = call.kv,
                .tables = call.tables,
                .table_stride = call.shape.table_stride,
                .sequences = sequences_.data(),
                .wide = wide_.data(),
                .narrow = narrow_.data(),
                .items = items_.data(),
                .wide_scratch = reinterpret_cast<float*>(wide_scratch_.data()),
                .narrow_scratch = reinterpret_cast<float*>(narrow_scratch_.data()),
                .group = model.group,
                .window = model.window,
                .scale_log2 = model.scale() * 1.44269504f} {}

  void Launch() const { Attention(params_, plan_.counts(), nullptr); }

 private:
  static std::vector<AttentionSequence> ToOurs(const Sequences& sequences) {
    std::vector<AttentionSequence> ours;
    for (const PrefillRows& s : sequences) ours.push_back({s.first_row, s.rows, s.position});
    return ours;
  }

  AttentionPlan plan_;
  DeviceArray<AttentionSequence> sequences_;
  DeviceArray<AttentionTile> wide_, narrow_;
  DeviceArray<SplitItem> items_;
  DeviceArray<std::byte> wide_scratch_, narrow_scratch_;
  AttentionParams params_;
};

DeviceArray<double> NoSums() { return DeviceArray<double>(std::vector<double>{0, 0}); }
double Relative(const DeviceArray<double>& sums) {
  const std::vector<double> read = sums.Read();
  return std::sqrt(read[0] / read[1]);
}

// Against double precision, for sequences of several lengths and positions.
void CheckAgainstDoubles(const Model& model, int processors, Report& report) {
  const std::vector<int32_t> lengths = {1, 16, 17, 1500, 333, 96, 97, 193};
  const std::vector<int32_t> rows = {1, 16, 5, 700, 1, 96, 97, 192};
  Sequences sequences;
  int32_t first = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({.first_row = first, .rows = rows[i], .position = lengths[i] - rows[i]});
    first += rows[i];
  }
  const Pages pages(model, lengths);
  const size_t elements = size_t{1} * first * model.width();
  const DeviceArray<Bf16> queries(elements), output(elements), again(elements);
  FillNormal(queries.data(), static_cast<int64_t>(elements), 6, 0);
  const LibraryStep step(model, pages, sequences, processors, queries.data(), output.data());
  step.Run();
  const DeviceArray<PrefillRows> device_sequences(sequences);
  const DeviceArray<double> sums = NoSums();
  AddAttentionErrors(step.call(), device_sequences.data(), static_cast<int>(sequences.size()),
                     sums.data());
  report.checks.push_back({model.Name(), Relative(sums), 5e-3});
  LibraryStep(model, pages, sequences, processors, queries.data(), again.data()).Run();
  const DeviceArray<uint64_t> count(std::vector<uint64_t>{0});
  CountDifferences(output.data(), again.data(), static_cast<int64_t>(elements / 2), count.data());
  report.checks.push_back({model.Name() + " again", static_cast<double>(count.Read()[0]), 1});
}

// A prompt of one sequence computed whole, and then in chunks, alone and beside other sequences.
class ChunkBits {
 public:
  ChunkBits(const Model& model, int processors)
      : model_(model),
        processors_(processors),
        pages_(model, {kLength, kLength, kLength}),
        queries_(size_t{kLength} * model.width()),
        want_(queries_.size()),
        step_queries_(size_t{kStepRows} * model.width()),
        step_output_(step_queries_.size()) {
    FillNormal(queries_.data(), static_cast<int64_t>(queries_.size()), 4, 0);
    FillNormal(step_queries_.data(), static_cast<int64_t>(step_queries_.size()), 5, 0);
    Step({{.rows = kLength}}, queries_.data(), want_.data()).Run();
  }

  double DeviationFromOurs() const {
    const DeviceArray<Bf16> ours(want_.size());
    const Sequences sequences = {{.rows = kLength}};
    PrefillCall call = Step(sequences, queries_.data(), ours.data()).call();
    OurStep(model_, call, sequences).Launch();
    const DeviceArray<double> sums = NoSums();
    AddErrors(want_.data(), ours.data(), static_cast<int64_t>(want_.size()), sums.data());
    return Relative(sums);
  }

  // Words that differ when the prompt's rows [begin, end) come in chunks.
  double Differences(int begin, int end, int chunk, bool others) const {
    const DeviceArray<uint64_t> count(std::vector<uint64_t>{0});
    const int64_t width = model_.width();
    for (int at = begin; at < end; at += chunk) {
      const int rows = std::min(chunk, end - at);
      FillDevice(step_output_.data(), 0xff, step_output_.size() * 2, nullptr);
      others ? StepBesideOthers(at, rows) : StepAlone(at, rows);
      CountDifferences(step_output_.data() + (others ? kRowsBefore * width : 0),
                       want_.data() + at * width, rows * width / 2, count.data());
    }
    ExpectNoDeviceError("a comparison of prefill attention");
    return static_cast<double>(count.Read()[0]);
  }

  static constexpr int kLength = 3000;

 private:
  static constexpr int kRowsBefore = 77, kRowsBehind = 200;
  static constexpr int kStepRows = kLength + kRowsBefore + kRowsBehind;

  LibraryStep Step(const Sequences& sequences, const Bf16* queries, Bf16* output) const {
    return LibraryStep(model_, pages_, sequences, processors_, queries, output);
  }
  void StepAlone(int at, int rows) const {
    Step({{.rows = rows, .position = at}}, queries_.data() + at * model_.width(),
         step_output_.data())
        .Run();
  }
  // The chunk's sequence is the first of the tables, and its rows are between the others'.
  void StepBesideOthers(int at, int rows) const {
    const int64_t width = model_.width();
    CopyOnDevice(step_queries_.data() + kRowsBefore * width, queries_.data() + at * width,
                 rows * width * 2, nullptr);
    Step({{.first_row = kRowsBefore, .rows = rows, .position = at},
          {.first_row = 0, .rows = kRowsBefore, .position = 1111},
          {.first_row = kRowsBefore + rows, .rows = kRowsBehind, .position = 0}},
         step_queries_.data(), step_output_.data())
        .Run();
  }

  Model model_;
  int processors_;
  Pages pages_;
  DeviceArray<Bf16> queries_, want_, step_queries_, step_output_;
};

void CheckChunks(const Model& model, int processors, Report& report) {
  const ChunkBits bits(model, processors);
  report.checks.push_back({model.Name() + " beside ours", bits.DeviationFromOurs(), 1e-2});
  const auto check = [&](int begin, int end, int chunk) {
    for (const bool others : {false, true}) {
      report.checks.push_back(
          {model.Name() + " chunks of " + std::to_string(chunk) + (others ? " beside others" : ""),
           bits.Differences(begin, end, chunk, others), 1});
    }
  };
  check(0, 100, 1);
  check(ChunkBits::kLength - 40, ChunkBits::kLength, 1);
  check(0, 600, 16);
  for (const int chunk : {100, 512, 1000, 2999}) check(0, ChunkBits::kLength, chunk);
}

// Microseconds of ours and of the library's for one step.
void MeasureStep(const std::string& name, const Model& model, const Sequences& sequences,
                 int processors, Report& report) {
  std::vector<int32_t> lengths;
  double flops = 0;
  for (const PrefillRows& s : sequences) {
    lengths.push_back(s.position + s.rows);
    flops += 4.0 * static_cast<double>(model.width()) * s.rows * (s.position + (s.rows + 1) / 2.0);
  }
  const Pages pages(model, lengths);
  const size_t elements = size_t{1} * RowsOf(sequences) * model.width();
  const DeviceArray<Bf16> queries(elements), output(elements);
  FillNormal(queries.data(), static_cast<int64_t>(elements), 6, 0);
  const LibraryStep step(model, pages, sequences, processors, queries.data(), output.data());
  const OurStep our_step(model, step.call(), sequences);
  const double ours = MedianUs([&] { our_step.Launch(); }, nullptr, 5);
  const double theirs = MedianUs([&] { step.Launch(); }, nullptr, 5);
  const auto push = [&](const char* whose, double us) {
    report.measurements.push_back({.name = "prefill " + name + whose,
                                   .median_us = us,
                                   .rate = flops / us / 1e6,
                                   .unit = "TFLOP/s"});
  };
  push(" ours", ours);
  push(" library", theirs);
  std::printf("prefill %-24s ours %9.1f us (%4.0f TFLOP/s)  library %9.1f us (%4.0f TFLOP/s)\n",
              name.c_str(), ours, flops / ours / 1e6, theirs, flops / theirs / 1e6);
  std::fflush(stdout);
}

}  // namespace

void CheckLibraryPrefill(int processors, Report& report) {
  for (const int dim : {64, 128}) {
    for (const int window : {0, 100}) {
      CheckAgainstDoubles({.kv_heads = 2, .head_dim = dim, .window = window}, processors, report);
      CheckAgainstDoubles({.group = 1, .head_dim = dim, .page = 32, .window = window}, processors,
                          report);
      CheckAgainstDoubles(
          {.kv_heads = 1, .group = 7, .head_dim = dim, .page = 64, .window = window}, processors,
          report);
    }
    CheckChunks({.head_dim = dim}, processors, report);
    CheckChunks({.group = 3, .head_dim = dim, .page = 64}, processors, report);
    CheckChunks({.head_dim = dim, .window = 1000}, processors, report);
  }
}

void MeasureLibraryPrefill(int processors, Report& report) {
  const Model model;
  for (const int rows : {512, 1024, 2048, 8192, 32768}) {
    MeasureStep(std::to_string(rows) + " rows", model, {{.rows = rows}}, processors, report);
  }
  for (const int rows : {512, 2048}) {
    MeasureStep(std::to_string(rows) + " rows behind 30K", model,
                {{.rows = rows, .position = 30720}}, processors, report);
  }
  Sequences many;
  for (int i = 0; i < 32; ++i) many.push_back({.first_row = 64 * i, .rows = 64, .position = 2000});
  MeasureStep("32 x 64 rows behind 2K", model, many, processors, report);
  MeasureStep("8192 rows d64", {.head_dim = 64}, {{.rows = 8192}}, processors, report);
  MeasureStep("8192 rows window 1024", {.window = 1024}, {{.rows = 8192}}, processors, report);
}

}  // namespace penstock::cuda
