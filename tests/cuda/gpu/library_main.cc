// gpu_library_check [--json FILE] [--cublaslt LIBRARY] [--only PART]: the library implementation of
// the CUDA operations on a GPU of compute capability 9.0: its bits, its results, and its times
// beside ours. PART is gemm-bits, quantised-bits, gemm-speed, prefill-bits or
// prefill-speed. FILE is written after
// each part. Exit 0: all correct; 1: not; 77: there is no such GPU, and nothing was checked.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "kernels/cuda/runtime.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/gpu/library_suite.h"

namespace penstock::cuda {
namespace {

struct Options {
  std::string json, cublas_lt, only;
};

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string* value = std::strcmp(argv[i], "--json") == 0       ? &options.json
                         : std::strcmp(argv[i], "--cublaslt") == 0 ? &options.cublas_lt
                         : std::strcmp(argv[i], "--only") == 0     ? &options.only
                                                                   : nullptr;
    if (value == nullptr) return false;
    *value = argv[i + 1];
  }
  return argc % 2 == 1;
}

void RunPart(const char* name, const Options& options, const std::function<void()>& run,
             Report& report) {
  if (!options.only.empty() && options.only != name) return;
  const auto start = std::chrono::steady_clock::now();
  run();
  Synchronize(nullptr);
  ExpectNoDeviceError(name);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%s: %.1f s\n", name, seconds.count());
  std::fflush(stdout);
  if (!options.json.empty()) std::ofstream(options.json) << report.Json();
}

void PrintChecks(const Report& report) {
  int failed = 0;
  for (const Check& check : report.checks) {
    if (check.passed()) continue;
    ++failed;
    std::printf("FAILED  %-60s %.6g, limit %.3g\n", check.name.c_str(), check.value, check.limit);
  }
  for (const std::string& what : report.not_run) std::printf("NOT RUN %s\n", what.c_str());
  std::printf("%zu checks, %d failed\n", report.checks.size(), failed);
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: gpu_library_check [--json FILE] [--cublaslt LIBRARY] [--only PART]\n");
    return 64;
  }
  DeviceInfo info;
  if (!OpenDevice(0, &info)) {
    const char* error = TakeError();
    std::printf("SKIPPED: no GPU (%s)\n", error == nullptr ? "no reason given" : error);
    return 77;
  }
  if (info.compute_major != 9 || info.compute_minor != 0) {
    std::printf("SKIPPED: %s has compute capability %d.%d, not 9.0\n", info.name,
                info.compute_major, info.compute_minor);
    return 77;
  }
  Report report{.device = info.name};
  std::printf("%s, %d processors\n", info.name, info.processors);
  RunPart(
      "gemm-bits", options, [&] { CheckLibraryGemm(info.processors, report); }, report);
  RunPart(
      "quantised-bits", options, [&] { CheckLibraryQuantised(info.processors, report); }, report);
  RunPart(
      "prefill-bits", options, [&] { CheckLibraryPrefill(info.processors, report); }, report);
  RunPart(
      "gemm-speed", options,
      [&] { MeasureLibraryGemm(info.processors, options.cublas_lt, report); }, report);
  RunPart(
      "prefill-speed", options, [&] { MeasureLibraryPrefill(info.processors, report); }, report);
  PrintChecks(report);
  return report.checks.empty() || report.passed() ? 0 : 1;
}

}  // namespace
}  // namespace penstock::cuda

int main(int argc, char** argv) { return penstock::cuda::Main(argc, argv); }
