#include "kvstore/wire/nccl/nccl_communicator.h"

#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// The GPU multiprocessors that NCCL may use: enough for a network, so that compute keeps the
// others.
constexpr int kProcessorsMax = 4;

}  // namespace

NcclCommunicator::~NcclCommunicator() {
  PENSTOCK_CHECK(comm_ == nullptr && stream_ == nullptr, "a communicator was not closed");
}

absl::Status NcclCommunicator::Fail(absl::Status status) {
  if (!status.ok()) failed_ = true;
  return status;
}

absl::Status NcclCommunicator::Settle(nccl::Result result, std::string_view what, Duration limit,
                                      Stoppable stoppable) {
  const TimePoint deadline = Now() + limit;
  while (result == nccl::kInProgress) {
    if (Now() >= deadline) {
      return DeadlineExceeded("{} is not over after {:.0f} ms", what, Milliseconds(limit));
    }
    if (!parts_.pause() && stoppable == Stoppable::kYes) return Cancelled("{} was given up", what);
    const nccl::Result asked = calls_.comm_get_async_error(comm_, &result);
    if (asked != nccl::kSuccess) result = asked;
  }
  return parts_.library.StatusOf(result, what, comm_);
}

absl::StatusOr<nccl::UniqueId> NcclCommunicator::NewId() {
  nccl::UniqueId id{};
  RETURN_IF_ERROR(Fail(
      parts_.library.StatusOf(calls_.get_unique_id(&id), "ncclGetUniqueId", /*comm=*/nullptr)));
  return id;
}

absl::Status NcclCommunicator::Open(const nccl::UniqueId& id, NcclEnd end) {
  end_ = end;
  stream_ = parts_.device.CreateStream();
  if (stream_ == nullptr) return Fail(Unavailable("no stream of the GPU is to be had"));
  nccl::Config config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = kProcessorsMax;
  config.split_share = 0;
  const nccl::Result begun =
      calls_.comm_init_rank_config(&comm_, /*ranks=*/2, id, static_cast<int>(end), &config);
  const absl::Status status =
      Settle(begun, "ncclCommInitRankConfig", parts_.times.open, Stoppable::kYes);
  opened_ = status.ok();
  return Fail(status);
}

absl::Status NcclCommunicator::Enqueue(std::byte* data, size_t bytes) {
  const int peer = 1 - static_cast<int>(end_);
  RETURN_IF_ERROR(parts_.library.StatusOf(calls_.group_start(), "ncclGroupStart", comm_));
  const nccl::Result begun = end_ == NcclEnd::kSender
                                 ? calls_.send(data, bytes, nccl::kUint8, peer, comm_, stream_)
                                 : calls_.recv(data, bytes, nccl::kUint8, peer, comm_, stream_);
  const nccl::Result ended = calls_.group_end();  // Always called: groups belong to the thread.
  const std::string_view what = end_ == NcclEnd::kSender ? "ncclSend" : "ncclRecv";
  if (begun != nccl::kInProgress) RETURN_IF_ERROR(parts_.library.StatusOf(begun, what, comm_));
  // The operation is in the stream only when NCCL reports completion.
  return Settle(ended, what, parts_.times.move, Stoppable::kYes);
}

absl::StatusOr<void*> NcclCommunicator::TakeEvent() {
  if (idle_events_.empty()) idle_events_.push_back(parts_.device.CreateEvent());
  void* event = idle_events_.back();
  idle_events_.pop_back();
  if (event == nullptr) return Unavailable("no event of the GPU is to be had");
  return event;
}

absl::Status NcclCommunicator::Post(std::byte* data, size_t bytes) {
  auto event = TakeEvent();
  if (!event.ok()) return Fail(event.status());
  // The operation counts as posted from here on, because NCCL may have started it even if it
  // reports a failure.
  posted_.push_back({.event = *event, .deadline = Now() + parts_.times.move});
  RETURN_IF_ERROR(Fail(Enqueue(data, bytes)));
  parts_.device.RecordEvent(*event, stream_);
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclCommunicator::TakeMoved() {
  if (posted_.empty()) return false;
  const auto reached = parts_.device.Reached(posted_.front().event);
  if (!reached.ok()) return Fail(reached.status());
  if (*reached) {
    idle_events_.push_back(posted_.front().event);
    posted_.pop_front();
    return true;
  }
  nccl::Result result = nccl::kSuccess;
  const nccl::Result asked = calls_.comm_get_async_error(comm_, &result);
  if (asked != nccl::kSuccess) result = asked;
  if (result != nccl::kInProgress) {
    RETURN_IF_ERROR(Fail(parts_.library.StatusOf(result, "moving a piece", comm_)));
  }
  if (Now() >= posted_.front().deadline) {
    return Fail(
        DeadlineExceeded("a piece has not moved in {:.0f} ms", Milliseconds(parts_.times.move)));
  }
  return false;
}

// Receives are posted before their sends, so a sender's pieces end soon.
void NcclCommunicator::WaitForSends() {
  const TimePoint deadline = Now() + parts_.times.close;
  while (!failed_ && !posted_.empty() && Now() < deadline) {
    const auto moved = TakeMoved();
    if (moved.ok() && !*moved) parts_.pause();
  }
}

// OK when nothing is pending and the communicator can be destroyed.
absl::Status NcclCommunicator::EndPending() {
  if (!opened_) return FailedPrecondition("it was never open");
  if (end_ == NcclEnd::kSender) WaitForSends();
  if (!failed_ && posted_.empty()) {
    return Settle(calls_.comm_finalize(comm_), "ncclCommFinalize", parts_.times.close,
                  Stoppable::kNo);
  }
  if (calls_.comm_revoke == nullptr) return FailedPrecondition("this NCCL cannot revoke");
  return Settle(calls_.comm_revoke(comm_, 0), "ncclCommRevoke", parts_.times.close, Stoppable::kNo);
}

bool NcclCommunicator::Close(bool failed) {
  failed_ |= failed;
  bool over = true;
  if (comm_ != nullptr) {
    const nccl::Result ended =
        EndPending().ok() ? calls_.comm_destroy(comm_) : calls_.comm_abort(comm_);
    over = ended == nccl::kSuccess;
  }
  comm_ = nullptr;
  for (const Posted& posted : posted_) idle_events_.push_back(posted.event);
  posted_.clear();
  for (void* event : std::exchange(idle_events_, {})) {
    if (event != nullptr && over) parts_.device.DestroyEvent(event);
  }
  if (stream_ != nullptr && over) parts_.device.DestroyStream(stream_);
  stream_ = nullptr;
  return over;
}

}  // namespace penstock
