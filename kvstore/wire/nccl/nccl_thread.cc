#include "kvstore/wire/nccl/nccl_thread.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log/log.h"

namespace penstock {
namespace {

// NCCL offers nothing to wait on, so the thread polls.
constexpr Duration kPollInterval = std::chrono::microseconds(50);

TimePoint Now() { return std::chrono::steady_clock::now(); }

void PostEvent(const std::shared_ptr<NcclShared>& shared,
               std::function<void(NcclChannel::Events&)> call) {
  MutexLock lock(shared->mutex);
  if (shared->loop == nullptr) return;
  shared->loop->Post([shared, call = std::move(call)] {
    if (!shared->muted) call(shared->events);
  });
}

// Waits at most kPollInterval; false when the channel was stopped.
bool Pause(NcclShared& shared) {
  MutexLock lock(shared.mutex);
  shared.changed.WaitFor(shared.mutex, kPollInterval);
  return !shared.stop;
}

}  // namespace

NcclThread::NcclThread(std::shared_ptr<NcclShared> shared)
    : shared_(std::move(shared)),
      communicator_({.library = *shared_->library,
                     .device = *shared_->device,
                     .times = shared_->options.times,
                     .pause = [state = shared_.get()] { return Pause(*state); }}) {}

void NcclThread::Run() {
  shared_->device->Select();
  absl::Status status = Open();
  if (status.ok()) {
    PostEvent(shared_, [](NcclChannel::Events& events) { events.on_ready(); });
    status = Serve();
  }
  PostEvent(shared_, [status = std::move(status)](NcclChannel::Events& events) {
    events.on_failed(status);
  });
  over_ = communicator_.Close(WaitUntilBothStopped());
  EndCopies();
  ServeReads();
  FreeSlots();
  MutexLock lock(shared_->mutex);
  shared_->ended = true;
  shared_->changed.NotifyAll();
}

absl::Status NcclThread::AllocateSlots() {
  const NcclOptions& options = shared_->options;
  for (size_t i = 0; i < options.slots; ++i) {
    std::byte* slot = shared_->device->AllocatePinned(options.slot_bytes);
    if (slot == nullptr) {
      return ResourceExhausted("{} bytes of page-locked memory cannot be allocated",
                               options.slot_bytes);
    }
    shared_->slots.push_back(slot);
  }
  const size_t bytes = options.slots * options.slot_bytes;
  shared_->device_slots = shared_->device->AllocateForWires(bytes);
  if (shared_->device_slots == nullptr) {
    return ResourceExhausted("{} bytes of GPU memory cannot be allocated", bytes);
  }
  return absl::OkStatus();
}

absl::Status NcclThread::Open() {
  RETURN_IF_ERROR(AllocateSlots());
  ASSIGN_OR_RETURN(copies_, GpuCopies::Create(shared_->device));
  nccl::UniqueId id{};
  if (!sends()) {
    std::memcpy(&id, shared_->id.data(), sizeof(id));
  } else {
    ASSIGN_OR_RETURN(id, communicator_.NewId());
    std::string text(id.internal, sizeof(id.internal));
    PostEvent(shared_,
              [text = std::move(text)](NcclChannel::Events& events) { events.on_id(text); });
  }
  return communicator_.Open(id, shared_->end);
}

// Serves pieces until the channel stops (CANCELLED) or fails.
absl::Status NcclThread::Serve() {
  while (true) {
    ASSIGN_OR_RETURN(const auto piece, NextPiece());
    if (piece) RETURN_IF_ERROR(sends() ? StartCopy(*piece) : PostPiece(*piece));
    RETURN_IF_ERROR(TakeMoved());
    RETURN_IF_ERROR(TakeCopied());
  }
}

absl::StatusOr<std::optional<NcclChannel::Piece>> NcclThread::NextPiece() {
  const bool in_flight = communicator_.posted() > 0 || !copying_.empty();
  MutexLock lock(shared_->mutex);
  if (in_flight) {
    if (shared_->pieces.empty()) shared_->changed.WaitFor(shared_->mutex, kPollInterval);
  } else {
    while (!shared_->stop && shared_->pieces.empty()) shared_->changed.Wait(shared_->mutex);
  }
  if (shared_->stop) return Cancelled("the lane was closed");
  if (shared_->pieces.empty()) return std::nullopt;
  const Piece piece = shared_->pieces.front();
  shared_->pieces.pop_front();
  return piece;
}

absl::Status NcclThread::PostPiece(const Piece& piece) {
  std::byte* const data = piece.on_device() ? DeviceSlot(piece.slot) : shared_->slots[piece.slot];
  RETURN_IF_ERROR(communicator_.Post(data, piece.bytes));
  posted_.push_back(piece);
  PostEvent(shared_, [slot = piece.slot](NcclChannel::Events& events) { events.on_posted(slot); });
  return absl::OkStatus();
}

absl::Status NcclThread::TakeMoved() {
  while (true) {
    ASSIGN_OR_RETURN(const bool moved, communicator_.TakeMoved());
    if (!moved) return absl::OkStatus();
    const Piece piece = posted_.front();
    posted_.pop_front();
    if (sends()) {
      PostEvent(shared_,
                [slot = piece.slot](NcclChannel::Events& events) { events.on_moved(slot); });
    } else {
      RETURN_IF_ERROR(StartCopy(piece));
    }
  }
}

absl::Status NcclThread::StartCopy(const Piece& piece) {
  Copying copying{.piece = piece, .deadline = Now() + shared_->options.times.move};
  if (piece.on_device()) {
    std::byte* const slot = DeviceSlot(piece.slot);
    std::byte* const to = sends() ? slot : piece.to;
    ASSIGN_OR_RETURN(copying.copy, copies_->Start(to, sends() ? piece.from : slot, piece.bytes));
  }
  copying_.push_back(copying);
  return absl::OkStatus();
}

// True when the copy is complete; DEADLINE_EXCEEDED when it is late.
absl::StatusOr<bool> NcclThread::CopyEnded(GpuCopies::Copy copy, TimePoint deadline) {
  if (copy == nullptr) return true;
  ASSIGN_OR_RETURN(const bool ended, copies_->Ended(copy));
  if (ended) {
    copies_->Forget(copy);
  } else if (Now() >= deadline) {
    return DeadlineExceeded("the GPU has not copied a piece in time");
  }
  return ended;
}

absl::Status NcclThread::TakeCopied() {
  while (!copying_.empty()) {
    ASSIGN_OR_RETURN(const bool ended, CopyEnded(copying_.front().copy, copying_.front().deadline));
    if (!ended) return absl::OkStatus();
    const Piece piece = copying_.front().piece;
    copying_.pop_front();
    RETURN_IF_ERROR(OnCopied(piece));
  }
  return absl::OkStatus();
}

// A stopped channel's payloads may be reused, also during a copy: the copied bytes are the
// message's only if the channel was not stopped when the copy had ended.
absl::Status NcclThread::OnCopied(const Piece& piece) {
  if (!sends()) {
    PostEvent(shared_, [slot = piece.slot](NcclChannel::Events& events) { events.on_moved(slot); });
    return absl::OkStatus();
  }
  {
    MutexLock lock(shared_->mutex);
    if (shared_->stop) return Cancelled("the lane was closed");
  }
  return PostPiece(piece);
}

// Returns true when either end has failed.
bool NcclThread::WaitUntilBothStopped() {
  MutexLock lock(shared_->mutex);
  while (!shared_->stop) shared_->changed.Wait(shared_->mutex);
  const TimePoint deadline = Now() + shared_->options.times.close;
  while (!shared_->peer_stopped) {
    const Duration left = deadline - Now();
    if (left <= Duration::zero()) return true;
    shared_->changed.WaitFor(shared_->mutex, left);
  }
  return shared_->failed;
}

// Copies that were queued behind NCCL's kernels run when these have ended.
void NcclThread::EndCopies() {
  for (const Copying& copying : std::exchange(copying_, {})) {
    // A GPU that has failed writes nothing more.
    if (absl::IsDeadlineExceeded(AwaitCopy(copying.copy))) return;
  }
  MutexLock lock(shared_->mutex);
  shared_->quiet = true;
  for (WireLoop::Task& task : std::exchange(shared_->when_quiet, {})) {
    if (shared_->loop != nullptr) shared_->loop->Post(std::move(task));
  }
}

// Polls for at most NcclTimes::close. A copy that has not ended then may still write to a slot.
absl::Status NcclThread::AwaitCopy(GpuCopies::Copy copy) {
  const TimePoint deadline = Now() + shared_->options.times.close;
  while (true) {
    const auto ended = CopyEnded(copy, deadline);
    if (absl::IsDeadlineExceeded(ended.status())) over_ = false;
    if (!ended.ok() || *ended) return ended.status();
    Pause(*shared_);
  }
}

// Until the channel is destroyed.
void NcclThread::ServeReads() {
  while (auto read = NextRead()) {
    auto bytes = ReadToHost(read->from);
    MutexLock lock(shared_->mutex);
    if (shared_->loop == nullptr) return;
    shared_->loop->Post(
        [shared = shared_, done = std::move(read->done), bytes = std::move(bytes)]() mutable {
          {
            MutexLock task_lock(shared->mutex);
            if (shared->closed) return;
          }
          done(std::move(bytes));
        });
  }
}

std::optional<NcclShared::Read> NcclThread::NextRead() {
  MutexLock lock(shared_->mutex);
  while (!shared_->closed && shared_->reads.empty()) shared_->changed.Wait(shared_->mutex);
  if (shared_->closed) return std::nullopt;
  NcclShared::Read read = std::move(shared_->reads.front());
  shared_->reads.pop_front();
  return read;
}

// Through a slot, which NCCL does not use any more.
absl::StatusOr<std::vector<std::byte>> NcclThread::ReadToHost(std::span<const std::byte> from) {
  if (!over_ || copies_ == nullptr) return Unavailable("NCCL or the GPU has not ended its work");
  std::vector<std::byte> bytes(from.size());
  std::byte* const slot = shared_->slots.front();
  for (size_t at = 0; at < bytes.size(); at += shared_->options.slot_bytes) {
    const size_t piece = std::min(shared_->options.slot_bytes, bytes.size() - at);
    ASSIGN_OR_RETURN(const auto copy, copies_->StartToHost(slot, from.data() + at, piece));
    RETURN_IF_ERROR(AwaitCopy(copy));
    std::memcpy(bytes.data() + at, slot, piece);
  }
  return bytes;
}

void NcclThread::FreeSlots() {
  const size_t bytes = shared_->slots.size() * shared_->options.slot_bytes;
  if (!over_) {
    static_cast<void>(copies_.release());  // Its stream is still at work.
    LogError(
        "nccl_not_aborted",
        "NCCL has not ended a communicator, or the GPU not a copy: {} bytes of page-locked and "
        "{} bytes of GPU memory stay taken, because they may still be written to",
        bytes, shared_->device_slots == nullptr ? 0 : bytes);
    return;
  }
  copies_.reset();
  for (std::byte* slot : shared_->slots) shared_->device->FreePinned(slot);
  if (shared_->device_slots != nullptr) {
    shared_->device->FreeForWires(shared_->device_slots, bytes);
  }
}

}  // namespace penstock
