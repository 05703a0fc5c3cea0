#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kv_codec.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"
#include "kvstore/codec/device_kv_codec_parts.h"

namespace penstock {

// The codecs of codec.h for KV in GPU memory. Encode produces the same bytes, and Decode accepts
// and rejects the same payloads, except for the payload bits of NaNs that only a forged payload of
// a lossy codec contains. Owns the scratch memory. One thread at a time.
class DeviceKvCodec {
 public:
  // For runs of at most `raw_bytes_max` bytes. Work is enqueued on `stream`, after earlier work.
  // `device` and `stream` outlive the codec. `processors` limits the multiprocessors that a
  // checksum takes from concurrent compute. RESOURCE_EXHAUSTED names the allocation that failed.
  static absl::StatusOr<std::unique_ptr<DeviceKvCodec>> Create(const cuda::CudaDevice& device,
                                                               void* stream, size_t raw_bytes_max,
                                                               int processors = 16);

  // True: every codec of AllKvCodecs() is supported.
  static bool Supports(const KvCodecSpec& /*spec*/) { return true; }

  // Copies a calibration to the device. Otherwise the first run that needs it does so, and may lack
  // memory then. RESOURCE_EXHAUSTED names the allocation that failed.
  absl::Status LoadCalibration(const KvCalibration& calibration);

  // As EncodeKv and DecodeKv, for device memory aligned to 16 bytes. Both return when the work has
  // ended. INVALID_ARGUMENT also when the run exceeds `raw_bytes_max`; INTERNAL when the GPU fails.
  absl::StatusOr<size_t> Encode(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, std::span<const std::byte> raw,
                                std::span<std::byte> encoded);
  absl::Status Decode(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                      std::span<const std::byte> encoded, std::span<std::byte> raw);

  // Crc32c (slab.h) of device memory, aligned to 16 bytes and at most EncodedKvBound of the largest
  // run. Verifies a received slab before it is decoded.
  absl::StatusOr<uint32_t> Checksum(std::span<const std::byte> bytes);

  // Reads the header of an encoded run. Waits for enqueued work.
  absl::StatusOr<KvCodecHeader> ReadHeader(const std::byte* encoded);

 private:
  DeviceKvCodec(const cuda::CudaDevice& device, void* stream, size_t raw_bytes_max, int processors);
  absl::Status Allocate();
  // Checks as EncodeKv, plus this class's own limits.
  absl::Status CheckRun(const KvCodecSpec& spec, const KvRun& run,
                        const KvCodecContext& context) const;
  cuda::LosslessParams LosslessOf(const KvRun& run, Bf16* values,
                                  std::span<std::byte> payload) const;
  // Copies everything that cgx streams need to device memory.
  absl::StatusOr<cuda::CgxParams> PrepareStreams(const kv_codec::PayloadPlan& plan, int level,
                                                 const KvCalibration& calibration, Bf16* values,
                                                 std::span<std::byte> payload);
  absl::Status EnqueueEncode(const KvCodecSpec& spec, const KvRun& run,
                             const KvCodecContext& context, Bf16* values, std::byte* payload);
  // DATA_LOSS when the payload's size alone is impossible.
  absl::Status EnqueueDecode(const KvCodecSpec& spec, const KvRun& run,
                             const KvCodecContext& context, std::span<std::byte> payload,
                             Bf16* values);
  // `size` is that of ChecksumParams.
  void EnqueueChecksum(const std::byte* bytes, size_t size_max, const uint32_t* size);
  // These two wait for all enqueued work.
  absl::StatusOr<cuda::KvCodecResult> ReadResult();
  absl::Status WriteHeader(const KvCodecHeader& header, std::byte* encoded);

  cuda::KvCodecResult* result() const { return result_.as<cuda::KvCodecResult>(); }

  const cuda::CudaDevice& device_;
  void* const stream_;
  const size_t raw_bytes_max_;
  const int processors_;
  kv_codec::DeviceCalibration calibration_;
  cuda::DeviceBuffer tiles_, segments_, streams_, words_, partials_, result_;
  cuda::PinnedBuffer host_result_, host_header_;
};

}  // namespace penstock
