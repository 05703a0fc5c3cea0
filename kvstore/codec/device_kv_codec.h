#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kv_codec.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"
#include "kvstore/codec/device_kv_codec_parts.h"

namespace penstock {

// The codecs of codec.h for KV that lies in a GPU's memory: the same bytes from Encode, and Decode
// takes and refuses the same, but for the payload bits of a NaN that only a forged payload of a
// lossy codec makes. Owns what scratch they need. One thread at a time.
class DeviceKvCodec {
 public:
  // For runs of at most `raw_bytes_max`, on `stream`, behind what is enqueued there. `device` and
  // `stream` outlive it. `processors` bounds what a checksum takes from compute beside it.
  // RESOURCE_EXHAUSTED says what found no room.
  static absl::StatusOr<std::unique_ptr<DeviceKvCodec>> Create(const cuda::CudaDevice& device,
                                                               void* stream, size_t raw_bytes_max,
                                                               int processors = 16);

  // All of AllKvCodecs().
  static bool Supports(const KvCodecSpec& /*spec*/) { return true; }

  // As EncodeKv and DecodeKv, in device memory aligned to 16 bytes. They return when all is done.
  // INVALID_ARGUMENT also for a run larger than `raw_bytes_max`; INTERNAL where the GPU fails.
  absl::StatusOr<size_t> Encode(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, std::span<const std::byte> raw,
                                std::span<std::byte> encoded);
  absl::Status Decode(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                      std::span<const std::byte> encoded, std::span<std::byte> raw);

  // Crc32c (slab.h) of device memory aligned to 16 bytes, of any size up to EncodedKvBound of the
  // largest run: what a received slab is verified by before it is decoded.
  absl::StatusOr<uint32_t> Checksum(std::span<const std::byte> bytes);

  // What stands in front of an encoded run, kKvCodecHeaderBytes of it. Waits for what is enqueued.
  absl::StatusOr<KvCodecHeader> ReadHeader(const std::byte* encoded);

 private:
  DeviceKvCodec(const cuda::CudaDevice& device, void* stream, size_t raw_bytes_max, int processors);
  absl::Status Allocate();
  // What EncodeKv asks of its arguments, and this class besides.
  absl::Status CheckRun(const KvCodecSpec& spec, const KvRun& run,
                        const KvCodecContext& context) const;
  cuda::LosslessParams LosslessOf(const KvRun& run, Bf16* values,
                                  std::span<std::byte> payload) const;
  // Everything that the streams of cgx need is in device memory then.
  absl::StatusOr<cuda::CgxParams> PrepareStreams(const kv_codec::PayloadPlan& plan, int level,
                                                 const KvCalibration& calibration, Bf16* values,
                                                 std::span<std::byte> payload);
  absl::Status EnqueueEncode(const KvCodecSpec& spec, const KvRun& run,
                             const KvCodecContext& context, Bf16* values, std::byte* payload);
  // DATA_LOSS where the payload's size alone says so.
  absl::Status EnqueueDecode(const KvCodecSpec& spec, const KvRun& run,
                             const KvCodecContext& context, std::span<std::byte> payload,
                             Bf16* values);
  // `size` as in ChecksumParams.
  void EnqueueChecksum(const std::byte* bytes, size_t size_max, const uint32_t* size);
  // These wait for all that is enqueued.
  absl::StatusOr<cuda::KvCodecResult> ReadResult();
  absl::Status WriteHeader(const KvCodecHeader& header, std::byte* encoded);

  cuda::KvCodecResult* result() const { return result_.as<cuda::KvCodecResult>(); }

  const cuda::CudaDevice& device_;
  void* const stream_;
  const size_t raw_bytes_max_;
  const int processors_;
  kv_codec::DeviceCalibration calibration_;
  cuda::DeviceBuffer tiles_, streams_, words_, partials_, result_;
  cuda::PinnedBuffer host_result_, host_header_;
};

}  // namespace penstock
