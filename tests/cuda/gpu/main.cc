// gpu_check [--small] [--only PART] [--json FILE] [--nccl LIBRARY]: the CUDA kernels on a GPU. PART
// is checks, exports, attention, products, quantised, latents, experts, draws, step or slabs. FILE
// is written after every part, so that a run that is ended has its results so far. Exit 0: all
// correct; 1: not; 77: there is no GPU, and nothing was checked. Without a library (none), no other
// process is started either: sanitizers do not follow those. gpu_check --export is the other
// process of the part exports.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "kernels/cuda/runtime.h"
#include "tests/cuda/gpu/exports.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

int Run(int argc, char** argv) {
  bool small = false;
  const char* json = nullptr;
  const char* nccl = "libnccl.so.2";
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--small") == 0) {
      small = true;
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--nccl") == 0 && i + 1 < argc) {
      nccl = argv[++i];
    } else if (std::strcmp(argv[i], "--export") == 0) {
      return RunExporter();
    } else {
      std::fprintf(stderr,
                   "usage: gpu_check [--small] [--only PART] [--json FILE] [--nccl LIBRARY]\n");
      return 64;
    }
  }
  DeviceInfo info;
  if (!OpenDevice(0, &info)) {
    const char* error = TakeError();
    std::printf("SKIPPED: no GPU (%s)\n", error == nullptr ? "no reason given" : error);
    return 77;
  }
  Report report{.device = info.name};
  const auto save = [&] {
    if (json != nullptr) std::ofstream(json) << report.Json();
  };
  if (only.empty() || only == "checks") {
    CheckCorrectness(small, report);
    save();
    CheckNccl(nccl, report);
    CheckExchange(nccl, report);
    save();
  }
  if (only.empty() ? std::strcmp(nccl, "none") != 0 : only == "exports") {
    CheckExports(small, report);
    save();
  }
  if (!small && only != "checks" && only != "exports") MeasureSpeed(only, report, save);
  save();
  report.PrintTable();
  return report.passed() ? 0 : 1;
}

}  // namespace
}  // namespace penstock::cuda

int main(int argc, char** argv) { return penstock::cuda::Run(argc, argv); }
