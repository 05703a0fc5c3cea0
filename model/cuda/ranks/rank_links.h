#pragma once

#include <cstddef>

#include "base/status.h"

namespace penstock {

// Interface: the collective operations of the GPUs ("ranks") of one worker.
// worker/model/nccl_ranks.h implements it with NCCL. The links outlive all users.
class RankLinks {
 public:
  virtual ~RankLinks() = default;
  virtual int ranks() const = 0;
  // Called once for every rank, on the rank's thread, which has selected its GPU. Blocks until all
  // ranks have called it. An error tells what failed, or how long it waited for the others.
  virtual absl::Status Open(int rank) = 0;
  // Enqueues on `stream`, which belongs to the rank's GPU: `bytes` bytes at `from` of every rank
  // are copied to `to` on this rank, in the order of ranks. This rank's bytes may be in place
  // already, with `from` pointing to them. All ranks make the same calls in the same order.
  virtual absl::Status AllGather(int rank, const void* from, void* to, size_t bytes,
                                 void* stream) = 0;
  // Cancels enqueued work, even if not all ranks have enqueued it: a GPU's memory cannot be freed
  // while the GPU waits. No rank may make a call afterwards.
  virtual void Abort() = 0;
  // Returns the first error of the work that `rank` has enqueued. Any thread may call it.
  virtual absl::Status Look(int rank) = 0;
};

}  // namespace penstock
