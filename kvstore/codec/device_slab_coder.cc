#include "kvstore/codec/device_slab_coder.h"

#include <utility>

namespace penstock {
namespace {

constexpr int kProcessors = 8;  // multiprocessors that a checksum may use
class DeviceSlabCoder final : public SlabCoder {
 public:
  DeviceSlabCoder(const cuda::CudaDevice& device, size_t raw_bytes_max,
                  const KvCalibration* calibration)
      : device_(device), raw_bytes_max_(raw_bytes_max), calibration_(calibration) {}
  ~DeviceSlabCoder() override {
    device_.Select();
    cuda::DestroyStream(stream_);
  }

  absl::Status Open() {
    device_.Select();
    stream_ = cuda::CreateStream(/*high_priority=*/false);
    RETURN_IF_ERROR(cuda::TakeStatus("a stream for KV codecs"));
    ASSIGN_OR_RETURN(codec_, DeviceKvCodec::Create(device_, stream_, raw_bytes_max_, kProcessors));
    if (calibration_ != nullptr) RETURN_IF_ERROR(codec_->LoadCalibration(*calibration_));
    // The maximum size of an encoded slab; see EncodedKvBound.
    const size_t bound = raw_bytes_max_ + raw_bytes_max_ / 16 + 4096;
    ASSIGN_OR_RETURN(encoded_, cuda::DeviceBuffer::Create(bound, "KV codecs"));
    return absl::OkStatus();
  }

  bool Takes(const KvCodecSpec& spec, size_t raw_bytes) const override {
    const bool known = calibration_ != nullptr || !NeedsCalibration(spec);
    return DeviceKvCodec::Supports(spec) && known && raw_bytes <= raw_bytes_max_;
  }

  absl::StatusOr<size_t> Encode(const KvCodecSpec& spec, const KvRun& run,
                                std::span<std::byte> slab) override {
    ASSIGN_OR_RETURN(
        const size_t used,
        codec_->Encode(spec, run, context(), slab, {encoded_.as<std::byte>(), encoded_.bytes()}));
    if (used >= slab.size()) return slab.size();
    cuda::CopyOnDevice(slab.data(), encoded_.as<std::byte>(), used, stream_);
    cuda::Synchronize(stream_);
    RETURN_IF_ERROR(cuda::TakeStatus("KV codecs"));
    return used;
  }
  absl::StatusOr<KvCodecHeader> ReadHeader(std::span<const std::byte> encoded) override {
    if (encoded.size() < kKvCodecHeaderBytes) {
      return DataLoss("{} bytes are too few for a KV codec header", encoded.size());
    }
    device_.Select();
    return codec_->ReadHeader(encoded.data());
  }
  absl::Status Decode(const KvCodecSpec& spec, const KvRun& run, std::span<const std::byte> encoded,
                      std::span<std::byte> raw) override {
    return codec_->Decode(spec, run, context(), encoded, raw);
  }
  absl::StatusOr<uint32_t> Checksum(std::span<const std::byte> bytes) override {
    return codec_->Checksum(bytes);
  }

 private:
  // Without a checksum of the codec: the slab's own covers the payload.
  KvCodecContext context() const { return {.calibration = calibration_, .checksum = false}; }

  const cuda::CudaDevice& device_;
  const size_t raw_bytes_max_;
  const KvCalibration* const calibration_;
  void* stream_ = nullptr;
  std::unique_ptr<DeviceKvCodec> codec_;
  cuda::DeviceBuffer encoded_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SlabCoder>> MakeDeviceSlabCoder(const cuda::CudaDevice& device,
                                                               size_t raw_bytes_max,
                                                               const KvCalibration* calibration) {
  auto codec = std::make_unique<DeviceSlabCoder>(device, raw_bytes_max, calibration);
  RETURN_IF_ERROR(codec->Open());
  return codec;
}

}  // namespace penstock
