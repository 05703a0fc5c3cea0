// Who may access an emulated device's memory, and the message that ends the process otherwise.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/cuda/emulator/emulated_stream.h"

namespace penstock::cuda {
namespace {

constexpr size_t kBytes = 10'000;

uint8_t ReadAt(const void* p) { return *static_cast<const volatile uint8_t*>(p); }
void WriteAt(void* p) { *static_cast<volatile uint8_t*>(p) = 1; }

// A thread's device with memory of both kinds, and a stream.
class Rig {
 public:
  explicit Rig(int device) : device_(device) {
    SelectDevice(device);
    plain_ = AllocateDevice(kBytes);
    for_wires_ = AllocateForWires(kBytes);
    stream_ = CreateStream(false);
  }
  ~Rig() {
    SelectDevice(device_);
    DestroyStream(stream_);
    FreeDevice(plain_);
    FreeForWires(for_wires_, kBytes);
    SelectDevice(0);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  std::vector<void*> memory() const { return {plain_, for_wires_}; }
  void Run(const std::function<void()>& work) const {
    SelectDevice(device_);
    emulator::Enqueue(stream_, work);
    Synchronize(stream_);
  }

 private:
  const int device_;
  void* plain_ = nullptr;
  void* for_wires_ = nullptr;
  void* stream_ = nullptr;
};

TEST(DeviceMemoryDeathTest, HostCodeHasNoAccess) {
  const Rig rig(0);
  for (void* const p : rig.memory()) {
    for (const bool after_work : {false, true}) {
      if (after_work) rig.Run([p] { WriteAt(p); });
#if defined(__x86_64__)
      EXPECT_DEATH(ReadAt(p), "host code read memory of emulated device 0 at 0x");
      EXPECT_DEATH(WriteAt(p), "host code wrote memory of emulated device 0 at 0x");
#else
      EXPECT_DEATH(ReadAt(p), "host code accessed memory of emulated device 0 at 0x");
#endif
    }
  }
}

TEST(DeviceMemoryDeathTest, AFaultElsewhereIsNotCalledAnAccessToADevice) {
  const Rig rig(0);
  // The message of the guard would be the first output.
  EXPECT_DEATH(ReadAt(reinterpret_cast<const void*>(uintptr_t{64})), "^($|[^hw])");
}

TEST(DeviceMemoryDeathTest, OtherDevicesNeedPeerAccess) {
  const Rig owner(2), other(3);
  for (void* const p : owner.memory()) {
    EXPECT_DEATH(other.Run([p] { ReadAt(p); }),
                 "work of emulated device 3 .* memory of emulated device 2 at 0x");
  }
  SelectDevice(3);
  ASSERT_TRUE(EnablePeerAccess(2));
  for (void* const p : owner.memory()) {
    other.Run([p] { WriteAt(p); });
    owner.Run([p] { EXPECT_EQ(ReadAt(p), 1); });
    EXPECT_DEATH(ReadAt(p), "host code .* memory of emulated device 2 at 0x");
  }
}

TEST(DeviceMemoryDeathTest, WorkWithinWorkKeepsTheMemoryOpen) {
  const Rig rig(0);
  void* const p = rig.memory().front();
  rig.Run([p] {
    emulator::Enqueue(nullptr, [p] { WriteAt(p); });
    EXPECT_EQ(ReadAt(p), 1);
  });
  EXPECT_DEATH(ReadAt(p), "host code .* memory of emulated device 0 at 0x");
}

TEST(DeviceMemoryTest, HostCodeHasAccessToPinnedMemory) {
  const Rig rig(0);
  auto* const pinned = static_cast<std::byte*>(AllocatePinned(kBytes));
  std::memset(pinned, 7, kBytes);
  rig.Run([&] { std::memcpy(rig.memory().front(), pinned, kBytes); });
  std::memset(pinned, 0, kBytes);
  rig.Run([&] { std::memcpy(pinned, rig.memory().front(), kBytes); });
  EXPECT_EQ(pinned[kBytes - 1], std::byte{7});
  FreePinned(pinned);
}

TEST(DeviceMemoryTest, AllocationsAreFilledAlignedAndApart) {
  SelectDevice(0);
  std::vector<std::pair<uint8_t*, size_t>> allocations;
  const auto allocate = [&](size_t bytes) {
    auto* const p = static_cast<uint8_t*>(AllocateDevice(bytes));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, 0u);
    std::vector<uint8_t> values(bytes);
    CopyToHost(values.data(), p, bytes, nullptr);
    EXPECT_EQ(values, std::vector<uint8_t>(bytes, 0xff));
    for (const auto& [other, size] : allocations)
      EXPECT_TRUE(p + bytes <= other || other + size <= p);
    FillDevice(p, 1, bytes, nullptr);
    allocations.emplace_back(p, bytes);
  };
  for (const size_t bytes : {1u, 0u, 256u, 3u << 20, 1000u, 5u << 20}) allocate(bytes);
  // Its place is taken again by what fits there.
  uint8_t* const freed = allocations[3].first;
  FreeDevice(freed);
  allocations.erase(allocations.begin() + 3);
  allocate(4u << 20);
  EXPECT_NE(allocations.back().first, freed);
  allocate(2u << 20);
  EXPECT_EQ(allocations.back().first, freed);
  allocate(1u << 19);
  for (const auto& [p, bytes] : allocations) FreeDevice(p);
  EXPECT_EQ(AllocateDevice(size_t{1} << 40), nullptr);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
TEST(DeviceMemoryDeathTest, AddressSanitizerKnowsTheAllocations) {
  const Rig rig(0);
  auto* const p = static_cast<uint8_t*>(AllocateDevice(1001));
  EXPECT_DEATH(rig.Run([p] { WriteAt(p + 1001); }), "AddressSanitizer: use-after-poison");
  EXPECT_DEATH(rig.Run([p] { WriteAt(p - 1); }), "AddressSanitizer: use-after-poison");
  rig.Run([p] { WriteAt(p + 1000); });
  FreeDevice(p);
  EXPECT_DEATH(rig.Run([p] { WriteAt(p); }), "AddressSanitizer: use-after-poison");
}
#endif
#endif

}  // namespace
}  // namespace penstock::cuda
