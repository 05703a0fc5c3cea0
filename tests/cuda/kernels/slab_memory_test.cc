// Slabs in the host's memory and in an emulated GPU's, with every codec: what one packs the other
// takes, in the same bytes.

#include "kvstore/handoff/slab_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>

#include "base/crc32c.h"
#include "kernels/cuda/cuda_slabs.h"
#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/device_slab_coder.h"
#include "tests/cuda/emulator/emulated_memory.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
constexpr uint32_t kBlocks = 12;
constexpr size_t kBudget = size_t{1} << 20;

// Memory that the CPU works on, a GPU's, and the host's that a GPU works on.
enum class Place { kHost, kGpu, kMirror };

// Measures `blocks` blocks of pages.
KvCalibration CalibrationOf(const std::vector<std::byte>& pages, size_t blocks) {
  const KvRun block = RunOfSlab(kLayout, {.layers = kLayout.layers, .blocks = 1}, 1);
  std::vector<const Bf16*> measured;
  for (size_t i = 0; i < blocks; ++i) {
    measured.push_back(reinterpret_cast<const Bf16*>(pages.data() + i * kLayout.BlockStride()));
  }
  return KvCalibration::Measure(block, measured);
}

class SlabMemoryTest : public testing::Test {
 protected:
  SlabMemoryTest() {
    std::mt19937_64 engine(7);
    std::normal_distribution<float> normal;
    for (auto& pages : {&from_, &to_}) pages->resize(kBlocks * kLayout.BlockStride());
    auto* values = reinterpret_cast<Bf16*>(from_.data());
    for (size_t i = 0; i < from_.size() / 2; ++i) values[i] = ToBf16(normal(engine));
    header_.raw_bytes = static_cast<uint32_t>(header_.blocks * kLayout.LayerBytes());
    header_.payload_bytes = header_.raw_bytes;
    measured_ = CalibrationOf(from_, kBlocks);
  }

  PagedKv View(std::vector<std::byte>& pages) const {
    return {.arena = pages.data(), .blocks = kBlocks, .layout = kLayout};
  }
  std::unique_ptr<SlabMemory> Make(Place place, std::vector<std::byte>& pages) {
    if (place == Place::kHost) {
      return MakeHostSlabs(View(pages), {.budget_bytes = kBudget, .calibration = calibration_});
    }
    auto& slabs = slabs_.emplace_back(*cuda::CudaSlabs::Create(*device_, View(pages), {}));
    GpuSlabMemories made = *MakeGpuSlabs(kLayout, *slabs, kBudget,
                                         *MakeDeviceSlabCoder(*device_, 1 << 18, calibration_));
    return std::move(place == Place::kGpu ? made.device : made.mirrored);
  }

  struct Packed {
    SlabHeader header;
    std::vector<std::byte> payload;
  };
  Packed Pack(SlabMemory& memory, const KvCodecSpec& codec) {
    Packed packed{.header = header_};
    const StagingBuffer buffer = memory.Acquire(header_.raw_bytes);
    const SlabPacking packing{.codec = codec,
                              .source = {.blocks = kFrom, .sequence_blocks = kBlocks},
                              .slab = {buffer.data(), header_.raw_bytes},
                              .header = &packed.header};
    memory.Pack({&packing, 1});
    const std::byte* seen = cuda::emulator::SeenByHardware(buffer.data());
    packed.payload.assign(seen, seen + packed.header.payload_bytes);
    return packed;
  }
  // OK: its pages are written.
  absl::Status Land(SlabMemory& memory, const Packed& packed, std::vector<KvCodecSpec> codecs) {
    const StagingBuffer buffer = memory.Acquire(SlabMemory::BytesToLand(packed.header));
    std::memcpy(cuda::emulator::SeenByHardware(buffer.data()), packed.payload.data(),
                packed.payload.size());
    std::optional<absl::Status> end;
    memory.Verify({.header = packed.header,
                   .data = buffer.data(),
                   .codecs = std::move(codecs),
                   .sequence_blocks = kBlocks},
                  [&](const absl::StatusOr<std::span<const std::byte>>& raw) {
                    if (!raw.ok()) {
                      end = raw.status();
                      return;
                    }
                    memory.Write({.header = packed.header, .raw = *raw, .blocks = kTo},
                                 [&] { end = absl::OkStatus(); });
                  });
    memory.Drain();
    return end.value_or(absl::UnknownError("no end"));
  }
  std::vector<std::byte> Written() {
    std::vector<std::byte> layer;
    for (const uint32_t page : kTo) {
      const std::byte* data = View(to_).Layer(page, header_.first_layer);
      layer.insert(layer.end(), data, data + kLayout.LayerBytes());
    }
    return layer;
  }

  const std::vector<uint32_t> kFrom = {3, 0, 11, 7, 2}, kTo = {1, 9, 4, 0, 10};
  const std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  std::vector<std::unique_ptr<cuda::CudaSlabs>> slabs_;
  std::vector<std::byte> from_, to_;
  std::optional<KvCalibration> measured_;
  const KvCalibration* calibration_ = nullptr;  // of the memories that are made
  SlabHeader header_{.first_layer = 1, .layers = 1, .first_block = 4, .blocks = 5};
};

TEST_F(SlabMemoryTest, WhatOnePacksTheOtherTakes) {
  calibration_ = &*measured_;
  const auto host = Make(Place::kHost, from_), host_to = Make(Place::kHost, to_);
  const auto expect = [&](Place place, const KvCodecSpec& codec) {
    const auto gpu = Make(place, from_), gpu_to = Make(place, to_);
    ASSERT_TRUE(gpu->Takes(codec, header_.raw_bytes)) << KvCodecName(codec);
    const Packed by_host = Pack(*host, codec), by_gpu = Pack(*gpu, codec);
    EXPECT_EQ(by_gpu.header, by_host.header) << KvCodecName(codec);
    EXPECT_EQ(by_gpu.payload, by_host.payload) << KvCodecName(codec);
    EXPECT_EQ(by_gpu.header.codec == SlabCodec::kEncoded, codec.codec != KvCodec::kRaw);
    ASSERT_TRUE(Land(*host_to, by_gpu, {codec}).ok()) << KvCodecName(codec);
    const std::vector<std::byte> wanted = Written();
    std::ranges::fill(to_, std::byte{0});
    const absl::Status landed = Land(*gpu_to, by_host, {codec});
    ASSERT_TRUE(landed.ok()) << KvCodecName(codec) << landed;
    EXPECT_TRUE(Written() == wanted) << KvCodecName(codec);
  };
  for (const KvCodecSpec& codec : AllKvCodecs()) {
    expect(Place::kGpu, codec);
    expect(Place::kMirror, codec);
  }
}

// A piece of the arena is taken with the same piece of its mirror.
TEST_F(SlabMemoryTest, AGpusMemoryAndItsMirrorShareABudget) {
  auto& slabs = slabs_.emplace_back(*cuda::CudaSlabs::Create(*device_, View(from_), {}));
  const GpuSlabMemories made = *MakeGpuSlabs(kLayout, *slabs, kBudget);
  EXPECT_EQ(made.mirrored->kind(), MemoryKind::kHost);
  for (int i = 0; i < 3; ++i) {
    const StagingBuffer half = made.device->Acquire(kBudget / 2);
    StagingBuffer other = made.mirrored->Acquire(kBudget / 2);
    ASSERT_TRUE(half && other);
    EXPECT_EQ(made.device->used(), kBudget);
    EXPECT_EQ(made.mirrored->used(), kBudget);
    EXPECT_FALSE(made.device->Acquire(1));
    EXPECT_FALSE(made.mirrored->Acquire(1));
    other = StagingBuffer();
    EXPECT_TRUE(made.device->Acquire(kBudget / 2));
  }
  EXPECT_EQ(made.device->used(), 0u);
}

TEST_F(SlabMemoryTest, DamagedAndForeignSlabsAreNotWritten) {
  const std::vector<std::byte> before = to_;
  for (const Place place : {Place::kHost, Place::kGpu, Place::kMirror}) {
    const auto from = Make(place, from_), to = Make(place, to_);
    const KvCodecSpec lxr{KvCodec::kLxr};
    Packed packed = Pack(*from, lxr);
    const absl::Status foreign = Land(*to, packed, {{KvCodec::kLx16}});
    EXPECT_TRUE(absl::IsFailedPrecondition(foreign)) << foreign;
    EXPECT_THAT(Message(foreign), testing::HasSubstr("lxr"));
    packed.payload[100] ^= std::byte{1};
    EXPECT_TRUE(absl::IsDataLoss(Land(*to, packed, {lxr})));
    packed.header.payload_crc = Crc32c(packed.payload);  // of a peer that errs
    EXPECT_TRUE(absl::IsDataLoss(Land(*to, packed, {lxr})));
    packed.header.payload_bytes = 10;
    packed.payload.resize(10);
    packed.header.payload_crc = Crc32c(packed.payload);
    EXPECT_TRUE(absl::IsDataLoss(Land(*to, packed, {lxr})));
    EXPECT_TRUE(to_ == before);
  }
}

TEST_F(SlabMemoryTest, SlabsOfAnotherCalibrationAreNotWritten) {
  const std::vector<std::byte> before = to_;
  const KvCalibration other = CalibrationOf(from_, 1);
  ASSERT_NE(other.id(), measured_->id());
  const KvCodecSpec cgx{KvCodec::kCgx, 2};
  for (const Place place : {Place::kHost, Place::kGpu, Place::kMirror}) {
    calibration_ = &*measured_;
    const auto from = Make(place, from_);
    const Packed packed = Pack(*from, cgx);
    EXPECT_EQ(packed.header.codec, SlabCodec::kEncoded);
    calibration_ = &other;
    EXPECT_TRUE(absl::IsDataLoss(Land(*Make(place, to_), packed, {cgx})));
    EXPECT_TRUE(to_ == before);
  }
}

TEST_F(SlabMemoryTest, WhatDoesNotShrinkStaysRaw) {
  std::mt19937_64 random(9);
  for (std::byte& byte : from_) byte = static_cast<std::byte>(random());
  const Packed by_host = Pack(*Make(Place::kHost, from_), {KvCodec::kLxr});
  EXPECT_EQ(by_host.header.codec, SlabCodec::kRaw);
  for (const Place place : {Place::kGpu, Place::kMirror}) {
    const Packed by_gpu = Pack(*Make(place, from_), {KvCodec::kLxr});
    EXPECT_EQ(by_gpu.header, by_host.header);
    EXPECT_EQ(by_gpu.payload, by_host.payload);
  }
}

TEST_F(SlabMemoryTest, AGpuSaysWhatItDoesNotTake) {
  const auto gpu = Make(Place::kGpu, from_);
  EXPECT_FALSE(gpu->Takes({KvCodec::kCgx, 2}, 1024));  // It has no calibration.
  EXPECT_TRUE(gpu->Takes({KvCodec::kLxr}, 1 << 18));
  EXPECT_FALSE(gpu->Takes({KvCodec::kLxr}, (1 << 18) + 2));
  EXPECT_TRUE(gpu->Takes({}, 1 << 30));
  EXPECT_TRUE(gpu->Fits(kBudget));
  EXPECT_FALSE(gpu->Fits(kBudget + 1));
}

}  // namespace
}  // namespace penstock
