#pragma once

#include <cstddef>

#include "base/status.h"

namespace penstock {

// A seam: how the GPUs ("ranks") of one worker give each other what they have computed. NCCL is
// behind worker/model/nccl_ranks.h.
class RankLinks {
 public:
  virtual ~RankLinks() = default;
  virtual int ranks() const = 0;
  // Once for every rank, each on its thread, which has selected its GPU. Returns when all are
  // there; an error says what went wrong, or for how long the others were waited for.
  virtual absl::Status Open(int rank) = 0;
  // Enqueues on `stream`, which is of the rank's GPU: `bytes` at `from` of every rank come to `to`
  // of this one, in the order of ranks; this rank's own may be there already, and `from` be where
  // they are. All ranks make the same calls in one order.
  virtual absl::Status AllGather(int rank, const void* from, void* to, size_t bytes,
                                 void* stream) = 0;
  // Ends what is enqueued, whether or not all ranks came to it: memory of a GPU cannot be freed
  // while it waits. No rank calls anything afterwards.
  virtual void Abort() = 0;
  // What has gone wrong with anything that `rank` has enqueued. Any thread.
  virtual absl::Status Look(int rank) = 0;
};

}  // namespace penstock
