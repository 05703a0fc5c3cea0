#include "model/weights/formats/row_ranges.h"

#include <algorithm>
#include <thread>
#include <vector>

namespace penstock {
namespace {

constexpr int64_t kRangeRows = 64;  // of a range at least: a thread costs more than fewer rows

}  // namespace

absl::Status ForRowRanges(int threads, int64_t rows,
                          const std::function<absl::Status(int64_t first, int64_t last)>& run) {
  const int64_t ranges = std::clamp<int64_t>(rows / kRangeRows, 1, threads);
  std::vector<absl::Status> results(static_cast<size_t>(ranges));
  const auto run_range = [&](int64_t i) {
    results[static_cast<size_t>(i)] = run(rows * i / ranges, rows * (i + 1) / ranges);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < ranges; ++i) others.emplace_back(run_range, i);
  run_range(0);
  for (std::thread& thread : others) thread.join();
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

}  // namespace penstock
