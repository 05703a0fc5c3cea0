#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/library/gemm.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/cases/quantised_case.h"
#include "tests/cuda/gpu/cublas_lt.h"
#include "tests/cuda/gpu/library_kernels.h"
#include "tests/cuda/gpu/library_suite.h"
#include "tests/cuda/gpu/timing.h"

namespace penstock::cuda {
namespace {

using library::GemmTile;

struct Shape {
  const char* name;
  int32_t outputs, inputs;
};

constexpr Shape kLlama8b[] = {{"qkv", 6144, 4096},
                              {"o", 4096, 4096},
                              {"gate_up", 28672, 4096},
                              {"down", 4096, 14336},
                              {"lm_head", 128256, 4096}};

std::vector<GemmTile> Tiles() {
  std::vector<GemmTile> tiles;
  for (size_t i = 0; i < library::kGemmTiles.size(); ++i) tiles.push_back(static_cast<GemmTile>(i));
  return tiles;
}

int64_t Elements(const Shape& shape) { return int64_t{shape.outputs} * shape.inputs; }

class Sums {
 public:
  Sums() : sums_(2) { FillDevice(sums_.data(), 0, 2 * sizeof(double), nullptr); }
  double* data() const { return sums_.data(); }
  double relative() const {
    const std::vector<double> sums = sums_.Read();
    return std::sqrt(sums[0] / sums[1]);
  }

 private:
  DeviceArray<double> sums_;
};

class Counter {
 public:
  Counter() : count_(1) { FillDevice(count_.data(), 0, sizeof(uint64_t), nullptr); }
  uint64_t* data() const { return count_.data(); }
  double value() const { return static_cast<double>(count_.Read()[0]); }

 private:
  DeviceArray<uint64_t> count_;
};

// Products of one weight with rows of one input, compared with one product of all rows.
class GemmBits {
 public:
  GemmBits(const Shape& shape, int rows_max, int spread, uint32_t seed, int processors)
      : shape_(shape),
        rows_max_(rows_max),
        processors_(processors),
        weight_(Elements(shape)),
        input_(size_t{1} * rows_max * shape.inputs),
        want_(size_t{1} * rows_max * shape.outputs),
        got_(want_.size() + kGuard) {
    FillNormal(weight_.data(), static_cast<int64_t>(weight_.size()), seed, spread);
    FillNormal(input_.data(), static_cast<int64_t>(input_.size()), seed + 1000, spread);
    library::LaunchGemm(GemmTile::k128x128, Call(0, rows_max, want_.data()), nullptr);
    ExpectNoDeviceError("the library's product");
  }

  // Words of the product of rows [first, first + rows) that are not those of the product of all
  // rows, and words behind it that are written.
  void Compare(GemmTile tile, int first, int rows, uint64_t* differences) const {
    const int64_t words = int64_t{rows} * shape_.outputs;
    FillDevice(got_.data(), 0xff, (words + kGuard) * sizeof(float), nullptr);
    library::LaunchGemm(tile, Call(first, rows, got_.data()), nullptr);
    CountDifferences(got_.data(), want_.data() + int64_t{first} * shape_.outputs, words,
                     differences);
    CountTouched(got_.data() + words, kGuard, differences);
    ExpectNoDeviceError("a comparison of products");
  }

  double Relative() const {
    const Sums sums;
    const int rows = std::min(rows_max_, 32);
    const Product product{.data = want_.data(), .slices = 1, .width = shape_.outputs};
    AddProductErrors(weight(), input_.data(), rows, product, sums.data());
    return sums.relative();
  }

  // The differences between the library's product and ours, whose sums have another order: a
  // comparison that finds none finds nothing.
  double DifferencesFromOurs() const {
    constexpr int kRows = 64;
    const DeviceArray<float> output(size_t{kRows} * shape_.outputs * SkinnySlices(weight()));
    const Product ours = Gemm(weight(), input_.data(), kRows, output.data(), nullptr);
    const Counter counter;
    CountDifferences(ours.data, want_.data(), int64_t{kRows} * shape_.outputs, counter.data());
    return counter.value();
  }

  // The same as a graph.
  double DifferencesOfGraph() const {
    const int rows = std::min(rows_max_, 100);
    void* stream = CreateStream(false);
    Synchronize(nullptr);
    BeginCapture(stream);
    library::LaunchGemm(GemmTile::k64x16, Call(0, rows, got_.data()), stream);
    void* graph = EndCapture(stream);
    LaunchGraph(graph, stream);
    Synchronize(stream);
    const Counter counter;
    CountDifferences(got_.data(), want_.data(), int64_t{rows} * shape_.outputs, counter.data());
    DestroyGraph(graph);
    DestroyStream(stream);
    ExpectNoDeviceError("a graph of a product");
    return counter.value();
  }

  int rows_max() const { return rows_max_; }

 private:
  static constexpr int64_t kGuard = 4096;

  Weight weight() const {
    return {.data = weight_.data(), .outputs = shape_.outputs, .inputs = shape_.inputs};
  }
  library::GemmCall Call(int first, int rows, float* output) const {
    return {.weight = weight(),
            .input = input_.data() + int64_t{first} * shape_.inputs,
            .rows = rows,
            .output = output,
            .processors = processors_};
  }

  Shape shape_;
  int rows_max_, processors_;
  DeviceArray<Bf16> weight_, input_;
  DeviceArray<float> want_, got_;
};

void CheckBits(const Shape& shape, int rows_max, int spread, uint32_t seed, int processors,
               Report& report) {
  const GemmBits bits(shape, rows_max, spread, seed, processors);
  const std::string name = "library gemm " + std::string(shape.name) + " " +
                           std::to_string(shape.outputs) + " x " + std::to_string(shape.inputs) +
                           (spread > 0 ? " spread" : "");
  for (const GemmTile tile : Tiles()) {
    const Counter counter;
    for (const int rows :
         {1, 2, 7, 16, 17, 33, 64, 65, 128, 129, 130, 255, 256, 257, 512, 1000, 2048}) {
      if (rows > rows_max) continue;
      for (const int first : {0, (rows_max - rows) / 2, rows_max - rows}) {
        bits.Compare(tile, first, rows, counter.data());
      }
    }
    report.checks.push_back({name + " bits of " + ShapeOf(tile).name, counter.value(), 1});
  }
  report.checks.push_back({name, bits.Relative(), 1e-4});
  report.checks.push_back({name + " as a graph", bits.DifferencesOfGraph(), 1});
}

// What all measurements share: more weights than a cache holds, and room for every product.
struct GemmMemory {
  static constexpr int kRowsMax = 8192;
  static constexpr int64_t kWeights = int64_t{1100} << 20;  // elements: 2.2 GB
  static constexpr int64_t kOutputs = int64_t{1100} << 20;  // floats: 4.4 GB

  GemmMemory()
      : weights(kWeights),
        input(size_t{kRowsMax} * 14336),
        output(kOutputs),
        workspace(CublasLt::kWorkspaceBytes) {
    FillNormal(weights.data(), kWeights, 1, 0);
    FillNormal(input.data(), static_cast<int64_t>(input.size()), 2, 0);
  }

  DeviceArray<Bf16> weights, input;
  DeviceArray<float> output;
  DeviceArray<std::byte> workspace;
};

// Microseconds of a product, by a graph of several, each with another copy of the weight.
double ProductUs(const GemmMemory& memory, const Shape& shape, int rows,
                 const std::function<void(const Weight&, void*)>& enqueue) {
  const int64_t copies = std::max<int64_t>(1, GemmMemory::kWeights / Elements(shape));
  const int launches = rows <= 128 ? 8 : 2;
  void* stream = CreateStream(false);
  Synchronize(nullptr);
  BeginCapture(stream);
  for (int i = 0; i < launches; ++i) {
    enqueue({.data = memory.weights.data() + (i % copies) * Elements(shape),
             .outputs = shape.outputs,
             .inputs = shape.inputs},
            stream);
  }
  void* graph = EndCapture(stream);
  ExpectNoDeviceError("a graph of products");
  const double us = MedianUs([&] { LaunchGraph(graph, stream); }, stream, rows <= 128 ? 7 : 3);
  DestroyGraph(graph);
  DestroyStream(stream);
  return us / launches;
}

struct Timed {
  std::string name;
  double us = 0;
};

std::vector<Timed> TimeAll(const GemmMemory& memory, const Shape& shape, int rows, int processors,
                           CublasLt* peer) {
  std::vector<Timed> times;
  times.push_back({"ours", ProductUs(memory, shape, rows, [&](const Weight& weight, void* stream) {
                     Gemm(weight, memory.input.data(), rows, memory.output.data(), stream);
                   })});
  for (const GemmTile tile : Tiles()) {
    if (rows >= 2048 && ShapeOf(tile).rows <= 16) continue;  // hopeless
    for (const int swizzle : {1, 8}) {
      if (swizzle > 1 && rows < 512) continue;
      const std::string name = std::string(ShapeOf(tile).name) + (swizzle > 1 ? " swizzled" : "");
      const auto enqueue = [&](const Weight& weight, void* stream) {
        library::LaunchGemm(tile,
                            {.weight = weight,
                             .input = memory.input.data(),
                             .rows = rows,
                             .output = memory.output.data(),
                             .processors = processors,
                             .swizzle = swizzle},
                            stream);
      };
      times.push_back({name, ProductUs(memory, shape, rows, enqueue)});
    }
  }
  for (const bool bf16 : {false, true}) {
    const Weight weight{.outputs = shape.outputs, .inputs = shape.inputs};
    if (peer == nullptr || !peer->Prepare(weight, rows, bf16)) continue;
    const auto enqueue = [&](const Weight& w, void* stream) {
      if (!peer->Multiply(w.data, memory.input.data(), memory.output.data(),
                          memory.workspace.data(), stream)) {
        std::fprintf(stderr, "cuBLASLt refuses %s with %d rows\n", shape.name, rows);
      }
    };
    times.push_back({bf16 ? "cuBLASLt bf16" : "cuBLASLt", ProductUs(memory, shape, rows, enqueue)});
  }
  return times;
}

// Microseconds of the host per launch: descriptors are made anew each time.
void MeasureHostTime(const GemmMemory& memory, int processors, Report& report) {
  constexpr int kLaunches = 500;
  library::GemmCall call{.weight = {.data = memory.weights.data(), .outputs = 4096, .inputs = 64},
                         .input = memory.input.data(),
                         .rows = 1,
                         .output = memory.output.data(),
                         .processors = processors};
  Synchronize(nullptr);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kLaunches; ++i) library::LaunchGemm(GemmTile::k64x16, call, nullptr);
  const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
  Synchronize(nullptr);
  report.measurements.push_back(
      {.name = "host time of a library gemm", .median_us = us.count() / kLaunches});
  std::printf("host time of a launch: %.2f us\n", us.count() / kLaunches);
}

void Push(const Shape& shape, int rows, const Timed& timed, Report& report) {
  const bool few = rows <= 64;
  const double elements = static_cast<double>(Elements(shape));
  report.measurements.push_back(
      {.name = std::string(shape.name) + " " + std::to_string(rows) + " rows " + timed.name,
       .median_us = timed.us,
       .rate = few ? 2.0 * elements / timed.us / 1e3 : 2.0 * elements * rows / timed.us / 1e6,
       .unit = few ? "GB/s" : "TFLOP/s"});
}

void PrintBest(const Shape& shape, int rows, const std::vector<Timed>& times) {
  const Timed* best = nullptr;
  double ours = 0, peer = 0, peer_bf16 = 0;
  for (const Timed& timed : times) {
    if (timed.name == "ours") {
      ours = timed.us;
    } else if (timed.name == "cuBLASLt") {
      peer = timed.us;
    } else if (timed.name == "cuBLASLt bf16") {
      peer_bf16 = timed.us;
    } else if (best == nullptr || timed.us < best->us) {
      best = &timed;
    }
  }
  std::printf("%-8s %5d rows: ours %9.1f  library %9.1f (%s)  cuBLASLt %9.1f, bf16 %9.1f us\n",
              shape.name, rows, ours, best->us, best->name.c_str(), peer, peer_bf16);
  std::fflush(stdout);
}

}  // namespace

void CheckLibraryGemm(int processors, Report& report) {
  for (const int spread : {0, 8}) {
    for (const Shape& shape : kLlama8b) {
      CheckBits(shape, shape.outputs > 100000 ? 300 : 2048, spread, 1 + spread, processors, report);
    }
    CheckBits({"odd", 1028, 520}, 2048, spread, 7 + spread, processors, report);
    CheckBits({"down of eight", 8192, 3584}, 2048, spread, 8 + spread, processors, report);
    CheckBits({"small", 1536, 8960}, 2048, spread, 9 + spread, processors, report);
  }
  const GemmBits bits({"qkv", 6144, 4096}, 64, 0, 1, processors);
  const double differences = bits.DifferencesFromOurs();
  report.checks.push_back({"a comparison sees other sums", differences > 0 ? 0 : NAN, 1});
}

void CheckLibraryQuantised(int processors, Report& report) {
  for (const CodeForm& form : AllForms(InputOrder::kNatural)) {
    for (const GemmTile tile : {GemmTile::k64x16, GemmTile::k128x256}) {
      for (const int rows : {1, 40}) {
        const auto multiply = [&](const Weight& weight, const Bf16* input, int count,
                                  float* output) {
          library::LaunchGemm(tile,
                              {.weight = weight,
                               .input = input,
                               .rows = count,
                               .output = output,
                               .processors = processors},
                              nullptr);
          return Product{.data = output, .slices = 1, .width = weight.outputs};
        };
        const QuantisedResult result =
            RunQuantised({.form = form, .rows = rows, .inputs = 4096, .outputs = 280}, multiply);
        report.checks.push_back(
            {NameOf(form) + ", " + std::to_string(rows) + " rows, bits of " + ShapeOf(tile).name,
             result.product == result.of_bf16 ? 0.0 : NAN, 1});
      }
    }
  }
}

void MeasureLibraryGemm(int processors, const std::string& cublas_lt, Report& report) {
  std::string reason;
  const std::unique_ptr<CublasLt> peer = CublasLt::Load(cublas_lt, reason);
  if (peer == nullptr) report.not_run.push_back("cuBLASLt: " + reason);
  const GemmMemory memory;
  MeasureHostTime(memory, processors, report);
  for (const Shape& shape : kLlama8b) {
    for (const int rows : {1, 8, 16, 32, 64, 128, 512, 2048, 8192}) {
      const std::vector<Timed> times = TimeAll(memory, shape, rows, processors, peer.get());
      for (const Timed& timed : times) Push(shape, rows, timed, report);
      PrintBest(shape, rows, times);
    }
  }
}

}  // namespace penstock::cuda
