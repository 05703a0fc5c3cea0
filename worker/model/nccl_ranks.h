#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/wire/nccl/nccl_library.h"
#include "model/cuda/ranks/rank_links.h"

namespace penstock {

// An NCCL communicator with a rank for each GPU of this process (docs/adr/0025). No call blocks
// longer than Times allow, as far as NCCL's non-blocking communicators keep their contract. Closing
// a broken communicator may block longer.
class NcclRanks final : public RankLinks {
 public:
  struct Times {
    Duration open = std::chrono::seconds(60);
    Duration call = std::chrono::seconds(10);  // until an enqueued operation is in the stream
    Duration close = std::chrono::seconds(5);
  };

  static absl::StatusOr<std::unique_ptr<NcclRanks>> Create(
      std::shared_ptr<const NcclLibrary> library, int ranks, const Times& times);
  ~NcclRanks() override;  // Every enqueued operation has ended or failed.

  int ranks() const override { return static_cast<int>(ends_.size()); }
  // UNAVAILABLE has NCCL's own text; DEADLINE_EXCEEDED has the time waited.
  absl::Status Open(int rank) override;
  absl::Status AllGather(int rank, const void* from, void* to, size_t bytes, void* stream) override;
  void Abort() override;
  absl::Status Look(int rank) override;

 private:
  struct End {
    Mutex mutex;  // one call at a time
    nccl::Comm* comm GUARDED_BY(mutex) = nullptr;
    bool opened GUARDED_BY(mutex) = false;
  };

  NcclRanks(std::shared_ptr<const NcclLibrary> library, int ranks, const Times& times);
  // Waits until `comm` has ended its operation.
  absl::Status Settle(nccl::Comm* comm, nccl::Result result, std::string_view what,
                      Duration limit) const;
  bool Finalize();  // true: no rank has operations under way

  const std::shared_ptr<const NcclLibrary> library_;
  const nccl::Functions& calls_;
  const Times times_;
  nccl::UniqueId id_{};
  std::vector<std::unique_ptr<End>> ends_;  // one for each rank
};

}  // namespace penstock
