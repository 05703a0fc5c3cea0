#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/crc32c.h"
#include "tests/contract/wire_support.h"
#include "tests/cuda/emulator/emulated_memory.h"

namespace penstock {

// Puts each message into a place of its own, on the GPU where it may; keeps what became of it.
class DeviceReceiver final : public WireReceiver {
 public:
  static constexpr size_t kPlaces = 64, kPlaceBytes = size_t{1} << 20;

  explicit DeviceReceiver(bool gpu) : gpu_(gpu ? EmulatedGpu() : nullptr) {
    if (gpu_ != nullptr) arena_ = gpu_->AllocateForWires(kPlaces * kPlaceBytes);
  }
  ~DeviceReceiver() override {
    if (gpu_ != nullptr) gpu_->FreeForWires(arena_, kPlaces * kPlaceBytes);
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
    });
  }
  void OnLost(std::span<const std::byte>, std::byte*) override {
    waiting_.Change([&] { ++lost; });
  }

  bool WaitSettled(int count) {
    return waiting_.Wait([&] { return landed + lost == count && announced == count; });
  }
  template <class T>
  T Read(T DeviceReceiver::*member) {
    T value{};
    waiting_.Change([&] { value = this->*member; });
    return value;
  }

  int announced = 0, landed = 0, lost = 0, torn = 0, on_device = 0;

 private:
  const std::shared_ptr<const TransferDevice> gpu_;
  std::byte* arena_ = nullptr;
  size_t next_ = 0;
  Waiting waiting_;
  std::deque<std::vector<std::byte>> host_;
};

}  // namespace penstock
