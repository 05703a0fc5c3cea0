#include "kvstore/wire/gpu_copies.h"

#include <thread>

namespace penstock {

absl::StatusOr<std::unique_ptr<GpuCopies>> GpuCopies::Create(
    std::shared_ptr<const TransferDevice> gpu) {
  std::unique_ptr<GpuCopies> copies(new GpuCopies(std::move(gpu)));
  copies->stream_ = copies->gpu_->CreateStream();
  if (copies->stream_ == nullptr) return ResourceExhausted("the GPU has no stream for lanes");
  return copies;
}

GpuCopies::~GpuCopies() {
  for (void* const event : idle_) gpu_->DestroyEvent(event);
  if (stream_ != nullptr) gpu_->DestroyStream(stream_);
}

absl::StatusOr<GpuCopies::Copy> GpuCopies::Start(TransferDevice::Way way, std::byte* to,
                                                 const std::byte* from, size_t bytes) {
  if (idle_.empty()) {
    void* const event = gpu_->CreateEvent();
    if (event == nullptr) return ResourceExhausted("the GPU has no event for a copy");
    idle_.push_back(event);
  }
  RETURN_IF_ERROR(gpu_->StartCopy(way, to, from, bytes, stream_));
  void* const event = idle_.back();
  idle_.pop_back();
  gpu_->RecordEvent(event, stream_);
  return event;
}

// By polling: a copy takes microseconds, and waits for compute a few milliseconds at most.
void GpuCopies::Await(Copy copy) const {
  while (true) {
    const auto ended = Ended(copy);
    if (!ended.ok() || *ended) return;  // A device that has failed writes nothing more.
    std::this_thread::yield();
  }
}

}  // namespace penstock
