#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/selection/selection.h"
#include "kernels/paged_kv.h"
#include "kernels/selection/known_bounds.h"

namespace penstock {

// Chooses the pages that rows of a step attend to, on a GPU: owns the bounds of the keys of all
// blocks of a pool, and what a step chooses. One step at a time, enqueued on one stream.
//
// This room, model/cuda/selection, has what selections add to the runner of a GPU. It may use
// base/, kernels/, kernels/selection, and kernels/cuda with its selection room.
class PageSelector {
 public:
  // The rows of a step that select.
  struct Rows {
    const cuda::SelectRow* rows = nullptr;  // on the device
    int32_t count = 0;
    int32_t pages_max = 0;  // of a row
    int32_t keep_max = 0;
    const uint32_t* tables = nullptr;  // on the device, of their sequences
    int64_t table_stride = 0;
    const Bf16* queries = nullptr;  // on the device, [rows of the step][heads * head_dim]
  };

  // Allocates the bounds of `kv`'s blocks: PageBounds::BytesOf for each. `heads`: query heads.
  // `scores_bytes_max`: scores take no more memory, unless those of one row do.
  // RESOURCE_EXHAUSTED that names the allocation.
  static absl::StatusOr<std::unique_ptr<PageSelector>> Create(const PagedKv& kv, int32_t heads,
                                                              size_t scores_bytes_max = size_t{256}
                                                                                        << 20);

  KnownBounds& known() { return known_; }
  const KnownBounds& known() const { return known_; }

  // Grows the memory for a step of `rows` rows, of which each has at most `pages_max` pages and
  // keeps at most `keep_max`.
  // RESOURCE_EXHAUSTED that names the allocation.
  absl::Status Reserve(int64_t rows, int64_t pages_max, int64_t keep_max);

  // The memory that Reserve grows. Graphs become invalid when one of them changes.
  const void* scores() const { return scores_.as<void>(); }
  const void* chosen() const { return chosen_.as<void>(); }

  // Enqueues the bounds of a layer of `blocks`, on the device, whose keys are in the pages.
  void FindBounds(const PagedKv& kv, int32_t layer, const uint32_t* blocks, int32_t count,
                  void* stream) const;
  // Enqueues the choice of the pages of all rows in a layer. Returns where it will be, on the
  // device: [count][kv_heads][keep_max] blocks.
  const uint32_t* Choose(int32_t layer, const Rows& rows, void* stream) const;

 private:
  PageSelector(const KvLayout& layout, int32_t heads, size_t scores_bytes_max)
      : layout_(layout), heads_(heads), scores_bytes_max_(scores_bytes_max) {}
  cuda::PageBoundsView BoundsOf(int32_t layer) const;
  // The rows of a launch, if each has at most `pages_max` pages; at least one.
  int64_t RowsAtOnce(int64_t pages_max) const;

  const KvLayout layout_;
  const int32_t heads_;
  const size_t scores_bytes_max_;
  KnownBounds known_;
  cuda::DeviceBuffer bounds_;  // [block][layer][kv_head][2][head_dim]
  cuda::DeviceBuffer scores_;  // of a launch's pages
  cuda::DeviceBuffer chosen_;  // tables
};

}  // namespace penstock
