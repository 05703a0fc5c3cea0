// Sums a product as the ranks of tensor parallelism do (model/cuda/ranks/rank_exchange.cc), on all
// GPUs of this machine: each rank adds the slices of its part, NCCL gathers the parts, each rank
// adds them. The result is compared, bit by bit, with the same additions on the host.

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/runtime.h"
#include "tests/cuda/gpu/nccl_calls.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

constexpr int kRows = 5, kWidth = 4096, kSlices = 3, kRanksMax = 8;
constexpr int64_t kSize = int64_t{kRows} * kWidth;

std::vector<float> PartOf(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> part(kSlices * kSize);
  for (float& x : part) x = normal(random);
  return part;
}

std::vector<float> SumOnTheHost(int ranks) {
  std::vector<float> sum(kSize);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> part = PartOf(rank);
    for (int64_t i = 0; i < kSize; ++i) {
      float x = 0;
      for (int s = 0; s < kSlices; ++s) x += part[s * kSize + i];
      sum[i] += x;
    }
  }
  return sum;
}

// One rank, on a thread of its own. Empty: `got` has the sum.
std::string RunRank(const nccl::Functions& calls, const nccl::UniqueId& id, int rank, int ranks,
                    std::vector<float>& got) {
  SelectDevice(rank);
  nccl::Config config;
  config.blocking = 0;
  nccl::Comm* comm = nullptr;
  const nccl::Result begun = calls.comm_init_rank_config(&comm, ranks, id, rank, &config);
  if (!SettleNccl(calls, comm, begun)) return "does not open";
  void* stream = CreateStream(/*high_priority=*/true);
  const std::vector<float> part = PartOf(rank);
  auto* slices = static_cast<float*>(AllocateDevice(part.size() * sizeof(float)));
  auto* gathered = static_cast<float*>(AllocateDevice(ranks * kSize * sizeof(float)));
  auto* sum = static_cast<float*>(AllocateDevice(kSize * sizeof(float)));
  CopyToDevice(slices, part.data(), part.size() * sizeof(float), stream);
  const Product own{.data = slices, .slice_stride = kSize, .slices = kSlices, .width = kWidth};
  SumSlices({.product = own, .output = gathered + rank * kSize}, kRows, stream);
  std::string wrong;
  if (!SettleNccl(calls, comm,
                  calls.all_gather(gathered + rank * kSize, gathered, kSize * sizeof(float),
                                   nccl::kUint8, comm, stream))) {
    wrong = "does not enqueue";
  }
  const Product all{.data = gathered, .slice_stride = kSize, .slices = ranks, .width = kWidth};
  SumSlices({.product = all, .output = sum}, kRows, stream);
  void* event = CreateEvent();
  RecordEvent(event, stream);
  if (wrong.empty() && !AwaitEvent(event)) wrong = "does not end";
  if (!wrong.empty()) return wrong;  // Nothing is freed: NCCL may still wait.
  CopyToHost(got.data(), sum, kSize * sizeof(float), stream);
  Synchronize(stream);
  if (SettleNccl(calls, comm, calls.comm_finalize(comm))) calls.comm_destroy(comm);
  DestroyEvent(event);
  DestroyStream(stream);
  for (float* p : {slices, gathered, sum}) FreeDevice(p);
  return TakeError() == nullptr ? "" : "fails";
}

}  // namespace

void CheckExchange(const char* path, Report& report) {
  DeviceInfo info;
  OpenDevice(0, &info);
  nccl::Functions calls{};
  std::string why;
  if (info.count < 2) why = "there is one";
  if (!why.empty() || !LoadNccl(path, calls, why)) {
    report.not_run.push_back("exchange between GPUs: " + why);
    return;
  }
  const int ranks = std::min(info.count, kRanksMax);
  nccl::UniqueId id{};
  std::vector<std::string> wrong(ranks, "no id");
  std::vector<std::vector<float>> got(ranks, std::vector<float>(kSize));
  if (calls.get_unique_id(&id) == nccl::kSuccess) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { wrong[rank] = RunRank(calls, id, rank, ranks, got[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<float> want = SumOnTheHost(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const bool right = wrong[rank].empty() && got[rank] == want;
    report.checks.push_back({"exchange of " + std::to_string(ranks) + " GPUs, rank " +
                                 std::to_string(rank) + " " + wrong[rank],
                             right ? 0.0 : 1.0, 0.5});
  }
  SelectDevice(0);
}

}  // namespace penstock::cuda
