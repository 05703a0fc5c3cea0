#include "worker/model/nccl_ranks.h"

#include <thread>
#include <utility>

namespace penstock {

NcclRanks::NcclRanks(std::shared_ptr<const NcclLibrary> library, int ranks, const Times& times)
    : library_(std::move(library)), calls_(library_->calls()), times_(times) {
  for (int rank = 0; rank < ranks; ++rank) ends_.push_back(std::make_unique<End>());
}

absl::StatusOr<std::unique_ptr<NcclRanks>> NcclRanks::Create(
    std::shared_ptr<const NcclLibrary> library, int ranks, const Times& times) {
  std::unique_ptr<NcclRanks> made(new NcclRanks(std::move(library), ranks, times));
  RETURN_IF_ERROR(made->library_->StatusOf(made->calls_.get_unique_id(&made->id_),
                                           "ncclGetUniqueId", /*comm=*/nullptr));
  return made;
}

absl::Status NcclRanks::Settle(nccl::Comm* comm, nccl::Result result, std::string_view what,
                               Duration limit) const {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (result == nccl::kInProgress) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded("{} has not ended after {:.0f} ms", what, Milliseconds(limit));
    }
    std::this_thread::yield();
    const nccl::Result asked = calls_.comm_get_async_error(comm, &result);
    if (asked != nccl::kSuccess) result = asked;
  }
  return library_->StatusOf(result, what, comm);
}

absl::Status NcclRanks::Open(int rank) {
  End& end = *ends_[static_cast<size_t>(rank)];
  MutexLock lock(end.mutex);
  nccl::Config config;
  config.blocking = 0;
  const nccl::Result begun = calls_.comm_init_rank_config(&end.comm, ranks(), id_, rank, &config);
  RETURN_IF_ERROR(Settle(end.comm, begun, "ncclCommInitRankConfig", times_.open));
  end.opened = true;
  return absl::OkStatus();
}

absl::Status NcclRanks::AllGather(int rank, const void* from, void* to, size_t bytes,
                                  void* stream) {
  End& end = *ends_[static_cast<size_t>(rank)];
  MutexLock lock(end.mutex);
  const nccl::Result begun = calls_.all_gather(from, to, bytes, nccl::kUint8, end.comm, stream);
  // The operation is in the stream only when NCCL reports that the call has ended.
  return Settle(end.comm, begun, "ncclAllGather", times_.call);
}

absl::Status NcclRanks::Look(int rank) {
  End& end = *ends_[static_cast<size_t>(rank)];
  MutexLock lock(end.mutex);
  if (!end.opened) return FailedPrecondition("rank {} is not open", rank);
  nccl::Result result = nccl::kSuccess;
  const nccl::Result asked = calls_.comm_get_async_error(end.comm, &result);
  if (asked != nccl::kSuccess) result = asked;
  if (result == nccl::kInProgress) return absl::OkStatus();
  return library_->StatusOf(result, "an exchange between GPUs", end.comm);
}

// Begins on all ranks before it waits, because a rank ends only together with the others.
bool NcclRanks::Finalize() {
  std::vector<nccl::Result> begun;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!Look(rank).ok()) return false;
  }
  for (const auto& end : ends_) {
    MutexLock lock(end->mutex);
    begun.push_back(calls_.comm_finalize(end->comm));
  }
  bool quiet = true;
  for (size_t rank = 0; rank < ends_.size(); ++rank) {
    MutexLock lock(ends_[rank]->mutex);
    quiet &= Settle(ends_[rank]->comm, begun[rank], "ncclCommFinalize", times_.close).ok();
  }
  return quiet;
}

void NcclRanks::Abort() {
  for (const auto& end : ends_) {
    MutexLock lock(end->mutex);
    if (end->comm != nullptr) calls_.comm_abort(end->comm);
    end->comm = nullptr;
    end->opened = false;
  }
}

NcclRanks::~NcclRanks() {
  if (!Finalize()) Abort();
  for (const auto& end : ends_) {
    MutexLock lock(end->mutex);
    if (end->comm != nullptr) calls_.comm_destroy(end->comm);
  }
}

}  // namespace penstock
