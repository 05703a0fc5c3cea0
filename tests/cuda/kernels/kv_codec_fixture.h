#pragma once

#include "kvstore/codec/device_kv_codec.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/kvstore/codec/codec_fixture.h"

namespace penstock {

// A DeviceKvCodec on a stream of its own, over the emulated device.
class DeviceCodecTest : public testing::Test {
 protected:
  static constexpr size_t kRawBytesMax = size_t{6} << 20;

  void SetUp() override {
    auto device = cuda::CudaDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto codec = DeviceKvCodec::Create(*device_, device_->stream(), kRawBytesMax, 2);
    ASSERT_TRUE(codec.ok()) << codec.status();
    codec_ = *std::move(codec);
  }

  // As EncodeAll of codec_fixture.h.
  std::vector<std::byte> Encode(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, const std::vector<Bf16>& values) {
    const cuda::DeviceArray<Bf16> raw(values);
    const cuda::DeviceArray<std::byte> encoded(EncodedKvBound(run));
    const auto used =
        codec_->Encode(spec, run, context, std::as_bytes(std::span(raw.data(), raw.size())),
                       {encoded.data(), encoded.size()});
    EXPECT_TRUE(used.ok()) << used.status();
    std::vector<std::byte> bytes = encoded.Read();
    bytes.resize(used.ok() ? *used : 0);
    return bytes;
  }

  // As DecodeAll.
  absl::StatusOr<std::vector<Bf16>> Decode(const KvCodecSpec& spec, const KvRun& run,
                                           const KvCodecContext& context,
                                           const std::vector<std::byte>& encoded) {
    // Exactly as many bytes as there are, so that a sanitizer sees who reads beyond.
    const cuda::DeviceArray<std::byte> bytes(encoded);
    const cuda::DeviceArray<Bf16> raw(run.Elements());
    const absl::Status status =
        codec_->Decode(spec, run, context, {bytes.data(), bytes.size()},
                       std::as_writable_bytes(std::span(raw.data(), raw.size())));
    if (!status.ok()) return status;
    return raw.Read();
  }

  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<DeviceKvCodec> codec_;
};

}  // namespace penstock
