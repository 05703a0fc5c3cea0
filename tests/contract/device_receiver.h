#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "base/crc32c.h"
#include "tests/contract/wire_support.h"
#include "tests/cuda/emulator/emulated_memory.h"

namespace penstock {

// Puts each message into a place of its own, on the GPU where it may; keeps what became of it.
class DeviceReceiver final : public WireReceiver {
 public:
  static constexpr size_t kPlaces = 64, kPlaceBytes = size_t{1} << 20;

  explicit DeviceReceiver(bool gpu, int index = 0) : gpu_(gpu ? EmulatedGpu(index) : nullptr) {
    if (gpu_ != nullptr) arena_ = gpu_->AllocateForWires(kPlaces * kPlaceBytes);
  }
  ~DeviceReceiver() override {
    if (gpu_ == nullptr) return;
    gpu_->Select();
    gpu_->FreeForWires(arena_, kPlaces * kPlaceBytes);
  }

  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t size) override {
    std::byte* target = nullptr;
    waiting_.Change([&] {
      ++announced;
      host_.emplace_back(size + 1);
      target = host_.back().data();
    });
    return target;
  }
  absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte> header,
                                                 size_t size) override {
    if (gpu_ == nullptr) {
      ASSIGN_OR_RETURN(std::byte* const target, OnAnnounced(header, size));
      return WireTarget{.data = target};
    }
    WireTarget target{.memory = MemoryKind::kDevice};
    waiting_.Change([&] {
      ++announced;
      target.data = arena_ + next_++ % kPlaces * kPlaceBytes;
      given_back_.erase(target.data);
    });
    return target;
  }
  void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) override {
    TestHeader said;
    std::memcpy(&said, header.data(), sizeof(said));
    std::byte* const seen = cuda::emulator::SeenByHardware(payload.data());
    const bool whole = said.size == payload.size() && Crc32c({seen, payload.size()}) == said.crc;
    waiting_.Change([&] {
      ++landed;
      torn += whole ? 0 : 1;
      on_device += seen != payload.data() ? 1 : 0;
      GiveBack(payload.data());
    });
  }
  void OnLost(std::span<const std::byte>, std::byte* target) override {
    waiting_.Change([&] {
      ++lost;
      GiveBack(target);
    });
  }

  bool WaitSettled(int count) {
    return waiting_.Wait([&] { return landed + lost == count && announced == count; });
  }
  // A message that is lost in GPU memory may be announced again, and land in the host's.
  bool WaitLanded(int count) {
    return waiting_.Wait([&] { return landed == count && announced == landed + lost; });
  }
  bool WaitEnded() {
    return waiting_.Wait([&] { return announced == landed + lost; });
  }
  // The places in GPU memory that were written to after their message had landed or was lost.
  int WrittenLate() {
    int late = 0;
    waiting_.Change([&] {
      for (const std::byte* place : given_back_) {
        const std::byte* const seen = cuda::emulator::SeenByHardware(place);
        late +=
            std::all_of(seen, seen + kPlaceBytes, [](auto b) { return b == kGivenBack; }) ? 0 : 1;
      }
    });
    return late;
  }
  template <class T>
  T Read(T DeviceReceiver::*member) {
    T value{};
    waiting_.Change([&] { value = this->*member; });
    return value;
  }

  int announced = 0, landed = 0, lost = 0, torn = 0, on_device = 0;

 private:
  static constexpr std::byte kGivenBack{0xee};

  // As the next slab there would.
  void GiveBack(std::byte* target) {
    std::byte* const seen = cuda::emulator::SeenByHardware(target);
    if (seen == target) return;
    std::fill_n(seen, kPlaceBytes, kGivenBack);
    given_back_.insert(target);
  }

  const std::shared_ptr<const TransferDevice> gpu_;
  std::byte* arena_ = nullptr;
  size_t next_ = 0;
  std::set<std::byte*> given_back_;  // places that no message has
  Waiting waiting_;
  std::deque<std::vector<std::byte>> host_;
};

}  // namespace penstock
