// Handoffs whose slabs stay in the memory of an emulated GPU, at one end or at both. The CPU cannot
// touch that memory: whoever does so ends the test.

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "base/crc32c.h"
#include "kernels/cuda/cuda_slabs.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/kvstore/handoff/handoff_pair.h"
#include "tests/kvstore/handoff/plain_slabs.h"

namespace penstock {
namespace {

struct Ends {
  bool source = true, target = true;
  bool reached = true;  // the wire reaches the GPUs; otherwise slabs are in their memory's mirror
};

class KvDeviceTest : public HandoffPair, public testing::WithParamInterface<Ends> {
 protected:
  // Copies as a network card does.
  KvDeviceTest() {
    if (!ends_.reached) return;
    hub_.SetDeviceCopy([this](std::byte* to, const std::byte* from, size_t bytes) {
      std::byte* const target = cuda::emulator::SeenByHardware(to);
      const std::byte* const source = cuda::emulator::SeenByHardware(from);
      from_device_ += source != from ? 1 : 0;
      to_device_ += target != to ? 1 : 0;
      std::memcpy(target, source, bytes);
      if (damage_-- == 0) target[bytes / 2] ^= std::byte{4};
    });
  }
  ~KvDeviceTest() override { TearDown(); }

  struct Gpu {
    std::unique_ptr<cuda::CudaSlabs> slabs;
    GpuSlabMemories memory;
  };
  static Gpu MakeGpu(const cuda::CudaDevice& device, const PagedKv& pages, size_t bytes) {
    Gpu gpu{.slabs = *cuda::CudaSlabs::Create(device, pages, {.slab_bytes_max = size_t{8} << 20})};
    gpu.memory = *MakeGpuSlabs(pages.layout, *gpu.slabs, bytes);
    return gpu;
  }
  void PrepareSource(KvSenderOptions& options) override {
    if (!ends_.source) return;
    source_gpu_ = MakeGpu(*device_, source_->view(), source_bytes_);
    options.device_slabs = source_gpu_.memory.device.get();
    options.mirrored_slabs = source_gpu_.memory.mirrored.get();
  }
  void PrepareTarget(KvReceiver& receiver) override {
    if (!ends_.target) return;
    target_gpu_ = MakeGpu(*device_, target_->view(), target_bytes_);
    receiver.SetGpuSlabs(target_gpu_.memory);
  }
  void ReleaseMemory() override {
    for (Gpu* gpu : {&source_gpu_, &target_gpu_}) {
      gpu->memory = {};
      gpu->slabs.reset();
    }
  }

  Handoff& HandOver(uint64_t session, uint32_t tokens) {
    Handoff& handoff = NewHandoff({session, 0, 1}, tokens);
    EXPECT_TRUE(Expect(handoff).ok());
    Start(handoff);
    Compute(handoff, 64);
    return handoff;
  }
  void ExpectWhole(Handoff& handoff) {
    ReceiveResult& received = handoff.received.Wait();
    ASSERT_TRUE(received.status.ok()) << received.status;
    EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, handoff.key.session));
    EXPECT_TRUE(handoff.sent.Wait().status.ok()) << handoff.sent.Wait().status;
    received.kv = {};
    receiver_->OnBlocksFreed();
  }

  PlainSlabs kernels_;
  std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  Ends ends_ = GetParam();
  size_t source_bytes_ = size_t{4} << 20, target_bytes_ = size_t{4} << 20;
  Gpu source_gpu_, target_gpu_;
  std::atomic<int> from_device_{0}, to_device_{0};
  std::atomic<int> damage_{-1};  // of this copy
};

TEST_P(KvDeviceTest, KvArrivesWholeAndPassesNoHost) {
  for (uint64_t session = 1; session <= 4; ++session) {
    ExpectWhole(HandOver(session, 200 * static_cast<uint32_t>(session)));
  }
  ExpectAllFree();
  EXPECT_EQ(from_device_ > 0, ends_.source && ends_.reached);
  EXPECT_EQ(to_device_ > 0, ends_.target && ends_.reached);
  EXPECT_EQ(receiver_->load().landed_in_device > 0, ends_.target && ends_.reached);
  EXPECT_EQ(kernels_.moves > 0, ends_.source || ends_.target);
  EXPECT_EQ(sender_->staging_used(), 0u);
  EXPECT_EQ(receiver_->load().staging_used, 0u);
}

TEST_P(KvDeviceTest, ManyAtOnceThroughLittleMemory) {
  source_bytes_ = target_bytes_ = 192 << 10;
  Build({.slabs = {.min = 4096, .max = 65536}, .staging_bytes = 65536}, {.staging_bytes = 65536});
  std::vector<Handoff*> handoffs;
  for (uint64_t session = 1; session <= 12; ++session) {
    handoffs.push_back(&HandOver(session, static_cast<uint32_t>(50 + 37 * session)));
  }
  for (Handoff* handoff : handoffs) {
    ExpectWhole(*handoff);
    handoff->blocks.clear();
  }
  ExpectAllFree();
}

class KvDamageTest : public KvDeviceTest {};  // whose copies can be damaged
TEST_P(KvDamageTest, ADamagedSlabIsNeverWritten) {
  damage_ = 1;
  Handoff& handoff = HandOver(1, 700);
  EXPECT_TRUE(absl::IsUnavailable(handoff.received.Wait().status) ||
              absl::IsDataLoss(handoff.received.Wait().status))
      << handoff.received.Wait().status;
  EXPECT_THAT(Message(handoff.received.Wait().status), testing::HasSubstr("damaged"));
  EXPECT_FALSE(handoff.sent.Wait().status.ok());
  ExpectAllFree();
  ExpectWhole(HandOver(2, 700));  // The worker goes on.
}

TEST_P(KvDeviceTest, BrokenLanesAreOpenedAgain) {
  hub_.SetDelay(std::chrono::minutes(1));  // Nothing lands on the lane that breaks.
  Handoff& handoff = HandOver(1, 400);
  while (receiver_->load().staging_used == 0) std::this_thread::yield();
  hub_.SetDelay({});
  hub_.BreakLanes(target_wire_->address());
  ExpectWhole(handoff);
  ExpectAllFree();
}

// A slab with a codec that the GPU does not have goes by the host's memory, as the others would.
TEST_P(KvDeviceTest, CodecsThatTheGpuLacksGoByTheHost) {
  Build({.codec = {KvCodec::kLx16}}, {});
  Handoff& handoff = NewHandoff({1, 0, 1}, 160);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  auto credit = source_->Reserve(kPairLayout.BlocksFor(160));
  std::vector<BlockRef> blocks = credit->Take(credit->blocks());
  for (const BlockRef& block : blocks) {
    std::memset(source_->view().Block(block.id()), 0x3c, kPairLayout.PayloadBytes());
  }
  sender_->SendLayers(handoff.key, {0, kPairLayout.layers, 0, 160, blocks});
  sender_->Finish(handoff.key, {v1::TokenOut()});
  ReceiveResult& received = handoff.received.Wait();
  ASSERT_TRUE(received.status.ok()) << received.status;
  ASSERT_EQ(received.kv.blocks.size(), blocks.size());
  for (const BlockRef& block : received.kv.blocks) {
    EXPECT_EQ(std::memcmp(target_->view().Block(block.id()), source_->view().Block(blocks[0].id()),
                          kPairLayout.PayloadBytes()),
              0);
  }
  EXPECT_EQ(handoff.sent.Wait().stats.codecs, std::vector<KvCodecSpec>{{KvCodec::kLx16}});
  EXPECT_EQ(kernels_.moves, 0);
  received.kv = {};
  blocks.clear();
  ExpectAllFree();
}

// While the GPU gathers, or sums, either side may end, and the lane break.
class KvGpuTest : public KvDeviceTest {};  // with a GPU somewhere
TEST_P(KvGpuTest, WhatEndsMeanwhileLetsGoOfEverything) {
  for (const int how : {0, 1, 2}) {
    kernels_.Hold();
    Handoff& handoff = HandOver(static_cast<uint64_t>(how) + 1, 300);
    kernels_.AwaitHeld();
    if (how == 0) sender_->Cancel(handoff.key, absl::CancelledError("the client went away"));
    if (how == 1) receiver_->Cancel(handoff.key, absl::CancelledError("the client went away"));
    if (how == 2) hub_.BreakLanes(target_wire_->address());
    // If the fault does not hold up the sender's thread, the receiver hears of it first.
    if (how == 0 && !ends_.source) handoff.sent.Wait();
    kernels_.Release();
    if (how == 2) {
      ExpectWhole(handoff);
    } else {
      EXPECT_FALSE(handoff.sent.Wait().status.ok());
      EXPECT_FALSE(handoff.received.Wait().status.ok());
    }
    ExpectAllFree();
  }
  EXPECT_EQ(sender_->staging_used(), 0u);
}

// A receiver that goes waits for what its GPU still does.
TEST_P(KvGpuTest, EndsWithSlabsUnderWay) {
  HandOver(1, 700);
  while (kernels_.moves == 0) std::this_thread::yield();
  TearDown();  // CHECKs that nothing is left.
}

std::string NameOf(const testing::TestParamInfo<Ends>& ends) {
  return std::string(ends.param.source ? "Gpu" : "Host") + "To" +
         (ends.param.target ? "Gpu" : "Host") + (ends.param.reached ? "" : "ByTheHost");
}
constexpr Ends kHosts{.source = false, .target = false};
constexpr Ends kToHost{.target = false}, kFromHost{.source = false};
constexpr Ends kMirrored{.reached = false}, kMirroredToHost{.target = false, .reached = false},
    kHostToMirrored{.source = false, .reached = false};
INSTANTIATE_TEST_SUITE_P(Ends, KvDeviceTest,
                         testing::Values(Ends{}, kToHost, kFromHost, kHosts, kMirrored,
                                         kMirroredToHost, kHostToMirrored),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ends, KvDamageTest, testing::Values(Ends{}, kToHost, kFromHost, kHosts),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ends, KvGpuTest,
                         testing::Values(Ends{}, kToHost, kFromHost, kMirrored, kMirroredToHost,
                                         kHostToMirrored),
                         NameOf);

TEST(KvDeviceMemoryDeathTest, TheCpuMustNotTouchIt) {
  const auto device = *cuda::CudaDevice::Open(0);
  const auto pool = *BlockPool::Create(kPairLayout, 4);
  const auto slabs = *cuda::CudaSlabs::Create(*device, pool->view(), {});
  const GpuSlabMemories memory = *MakeGpuSlabs(kPairLayout, *slabs, 1 << 20);
  const StagingBuffer buffer = memory.device->Acquire(4096);
  EXPECT_DEATH(Crc32c({buffer.data(), 16}), "");
}

}  // namespace
}  // namespace penstock
