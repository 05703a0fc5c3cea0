#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_device.h"
#include "model/cuda/cuda_scratch.h"

namespace penstock {

// Sends rows to device memory through two page-locked buffers: the threads fill one of them while
// the device copies the other. Logs its progress every 10 seconds. The destructor waits for the
// device. One thread uses it.
class CudaUpload {
 public:
  // Writes rows [first, first + count) to `to`. Called by several threads at once.
  using FillRows = std::function<void(int64_t first, int64_t count, std::byte* to)>;

  CudaUpload(int threads, void* stream);
  ~CudaUpload() { cuda::Synchronize(stream_); }
  CudaUpload(const CudaUpload&) = delete;
  CudaUpload& operator=(const CudaUpload&) = delete;

  // Copies `rows` rows of `row_bytes` bytes to `target`. The last ones may still be on their way
  // when it returns. RESOURCE_EXHAUSTED if there is no page-locked memory.
  absl::Status Send(int64_t rows, size_t row_bytes, const FillRows& fill, std::byte* target);
  // Waits until everything has arrived. INTERNAL reports a CUDA error.
  absl::Status Finish();

 private:
  struct Slot {
    cuda::PinnedBuffer memory;
    CudaEvent taken;  // by the device
  };

  absl::StatusOr<std::byte*> NextBuffer(size_t bytes);
  void Report(size_t bytes);

  ThreadPool threads_;
  void* const stream_;
  std::array<Slot, 2> slots_;
  size_t turn_ = 0;  // buffers used so far
  size_t sent_bytes_ = 0;
  TimePoint reported_;
};

}  // namespace penstock
