#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/device_slabs.h"

namespace penstock::cuda {

// Pages that are spread over several GPUs, for CudaSlabs, whose slabs are in the memory of one of
// them. An interface, because another room knows how they are spread (sharded/shard_movers.h).
class SpreadPages {
 public:
  // One slab to be copied from its pages, or (scatter) into them.
  struct Move {
    DeviceSlabs::Pieces pieces;
    std::byte* slab = nullptr;
    bool scatter = false;
  };
  // The streams and buffers of copies between pages and slabs. One thread at a time.
  class Mover {
   public:
    virtual ~Mover() = default;
    // Makes the copies, and returns when they are complete. Selects the slabs' GPU. INTERNAL if a
    // GPU has failed.
    virtual absl::Status MoveAll(std::span<const Move> moves) = 0;
  };

  virtual ~SpreadPages() = default;
  // A mover with buffers for `moves_max` slabs of at most `slab_bytes_max`. RESOURCE_EXHAUSTED
  // names what does not fit.
  virtual absl::StatusOr<std::unique_ptr<Mover>> OpenMover(size_t moves_max, size_t slab_bytes_max,
                                                           bool high_priority) = 0;
  // Memory for slabs has been allocated, and is about to be freed. False: there is no room for what
  // this object needs beside it.
  virtual bool OnAllocated(std::byte* memory, size_t bytes) = 0;
  virtual void OnFreed(std::byte* memory) = 0;
};

}  // namespace penstock::cuda
