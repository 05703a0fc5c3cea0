#include "kvstore/wire/net/device_probe.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// All its words differ, so that misplaced bytes are detected.
void FillPattern(std::byte* data) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < DeviceProbe::kBytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(data + at, &state, sizeof(state));
  }
}

// The number of bytes that differ from the pattern.
size_t CountWrong(const std::byte* data) {
  std::vector<std::byte> pattern(DeviceProbe::kBytes);
  FillPattern(pattern.data());
  if (std::memcmp(data, pattern.data(), DeviceProbe::kBytes) == 0) return 0;
  size_t wrong = 0;
  for (size_t i = 0; i < DeviceProbe::kBytes; ++i) wrong += data[i] != pattern[i] ? 1 : 0;
  return wrong;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProbe>> DeviceProbe::Make(
    std::shared_ptr<const TransferDevice> gpu) {
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(std::move(gpu)));
  RETURN_IF_ERROR(probe->Allocate());
  return probe;
}

absl::Status DeviceProbe::Allocate() {
  if (gpu_ == nullptr) return absl::OkStatus();
  gpu_->Select();
  stream_ = gpu_->CreateStream();
  pinned_ = gpu_->AllocatePinned(kBytes);
  source_ = gpu_->AllocateForWires(kBytes);
  target_ = gpu_->AllocateForWires(kBytes);
  if (stream_ == nullptr || pinned_ == nullptr || source_ == nullptr || target_ == nullptr) {
    return ResourceExhausted("{} bytes of GPU memory for probing lanes cannot be allocated",
                             2 * kBytes);
  }
  FillPattern(pinned_);
  RETURN_IF_ERROR(gpu_->Copy(TransferDevice::Way::kToDevice, source_, pinned_, kBytes, stream_));
  std::memset(pinned_, 0, kBytes);
  return gpu_->Copy(TransferDevice::Way::kToDevice, target_, pinned_, kBytes, stream_);
}

DeviceProbe::~DeviceProbe() {
  PENSTOCK_CHECK(waiting_.empty());
  if (gpu_ == nullptr) return;
  gpu_->Select();
  if (source_ != nullptr) gpu_->FreeForWires(source_, kBytes);
  if (target_ != nullptr) gpu_->FreeForWires(target_, kBytes);
  if (pinned_ != nullptr) gpu_->FreePinned(pinned_);
  if (stream_ != nullptr) gpu_->DestroyStream(stream_);
}

void DeviceProbe::AllocateOnHost() {
  if (gpu_ != nullptr || !host_.empty()) return;
  host_.resize(2 * kBytes);
  source_ = host_.data();
  target_ = host_.data() + kBytes;
  FillPattern(source_);
}

WirePayload DeviceProbe::source() {
  AllocateOnHost();
  return {.bytes = {source_, kBytes}, .memory = memory()};
}

WireTarget DeviceProbe::target() {
  AllocateOnHost();
  return {.data = target_, .memory = memory()};
}

void DeviceProbe::Await(const void* who, std::function<void(const WireTarget& target)> run) {
  waiting_.push_back({.who = who, .run = std::move(run)});
  if (waiting_.size() == 1) waiting_.front().run(target());
}

absl::Status DeviceProbe::Check() {
  std::byte* const bytes = gpu_ == nullptr ? target_ : pinned_;
  if (gpu_ != nullptr) {
    RETURN_IF_ERROR(gpu_->Copy(TransferDevice::Way::kToHost, pinned_, target_, kBytes, stream_));
  }
  const size_t wrong = CountWrong(bytes);
  std::memset(bytes, 0, kBytes);
  if (gpu_ != nullptr) {
    RETURN_IF_ERROR(gpu_->Copy(TransferDevice::Way::kToDevice, target_, pinned_, kBytes, stream_));
  }
  if (wrong == 0) return absl::OkStatus();
  return DataLoss("{} of the {} bytes of the probe arrived changed", wrong, kBytes);
}

void DeviceProbe::Finish(const void* who) {
  if (waiting_.empty()) return;
  const bool had = waiting_.front().who == who;
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.who == who; });
  if (had && !waiting_.empty()) waiting_.front().run(target());
}

}  // namespace penstock
