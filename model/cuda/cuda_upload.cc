#include "model/cuda/cuda_upload.h"

#include <algorithm>

#include "base/log/log.h"

namespace penstock {
namespace {

// Large enough for the threads to share, and for a copy to reach the bus's full speed.
constexpr size_t kBufferBytes = size_t{32} << 20;
// Of a buffer, for each thread: a thread that is held up leaves its share to the others.
constexpr int kTasksPerThread = 4;
constexpr Duration kReportEvery = std::chrono::seconds(10);

}  // namespace

CudaUpload::CudaUpload(int threads, void* stream)
    : threads_(threads), stream_(stream), reported_(SteadyClock().Now()) {}

absl::Status CudaUpload::Send(int64_t rows, size_t row_bytes, const FillRows& fill,
                              std::byte* target) {
  const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>(kBufferBytes / row_bytes));
  const int64_t tasks_max = int64_t{kTasksPerThread} * threads_.threads();
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const size_t bytes = static_cast<size_t>(count) * row_bytes;
    ASSIGN_OR_RETURN(std::byte* const buffer, NextBuffer(bytes));
    const int64_t each = (count + tasks_max - 1) / tasks_max;
    threads_.ParallelFor((count + each - 1) / each, [&](int64_t task, int) {
      const int64_t from = task * each;
      fill(first + from, std::min(each, count - from),
           buffer + static_cast<size_t>(from) * row_bytes);
    });
    cuda::CopyToDevice(target + static_cast<size_t>(first) * row_bytes, buffer, bytes, stream_);
    cuda::RecordEvent(slots_[turn_++ % slots_.size()].taken.get(), stream_);
    Report(bytes);
  }
  return absl::OkStatus();
}

// The buffer whose turn it is, once the device has copied its last contents.
absl::StatusOr<std::byte*> CudaUpload::NextBuffer(size_t bytes) {
  Slot& slot = slots_[turn_ % slots_.size()];
  cuda::SynchronizeEvent(slot.taken.get());
  RETURN_IF_ERROR(Grow(slot.memory, bytes, "buffer for weights"));
  return slot.memory.as<std::byte>();
}

void CudaUpload::Report(size_t bytes) {
  sent_bytes_ += bytes;
  const TimePoint now = SteadyClock().Now();
  if (now - reported_ < kReportEvery) return;
  reported_ = now;
  Log(LogLevel::kInfo, "model_loading", {{"gigabytes", static_cast<double>(sent_bytes_) / 1e9}});
}

absl::Status CudaUpload::Finish() {
  cuda::Synchronize(stream_);
  return cuda::TakeStatus("copying weights");
}

}  // namespace penstock
