#pragma once

#include <memory>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/view.h"

namespace penstock {

// Brings the queries of some rows of a step from the GPU to the host, layer by layer, while the GPU
// computes the rest of the layer. One step at a time.
class ObservedQueries {
 public:
  // Page-locked memory, and what the host makes of it, for `rows` rows of `width` elements.
  static absl::StatusOr<std::unique_ptr<ObservedQueries>> Create(int64_t rows, int64_t width);
  ~ObservedQueries();
  ObservedQueries(const ObservedQueries&) = delete;
  ObservedQueries& operator=(const ObservedQueries&) = delete;

  // Enqueues the copy of rows [first, first + count) of `queries`, [rows][width] on the device.
  void Copy(const Bf16* queries, int64_t first, int64_t count, void* stream);
  // Marks that the copies of a layer are enqueued.
  void Mark(void* stream);
  // Waits for the copies, and returns the step's `rows` rows; those that were not copied have
  // anything. Valid until the next call.
  View<const float, 2> Await(int64_t rows);

 private:
  struct Range {
    int64_t first = 0;
    int64_t count = 0;
  };
  explicit ObservedQueries(int64_t width) : width_(width) {}

  const int64_t width_;
  void* copied_ = nullptr;  // event
  cuda::PinnedBuffer here_;
  std::vector<float> rows_;
  std::vector<Range> ranges_;  // under way
};

}  // namespace penstock
