#include "kvstore/codec/device_kv_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvstore/codec/codec_parts.h"
#include "kvstore/codec/device_kv_codec_parts.h"

namespace penstock {
namespace {

constexpr size_t kAlignment = 16;  // required by the kernels' loads
constexpr std::string_view kWhat = "KV codecs";

bool IsAligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; }

// The kernels' parameter types are shared by encoding, which only reads the values, and decoding,
// which only reads the payload, so const is cast away.
std::span<std::byte> Writable(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}
Bf16* ValuesIn(std::span<const std::byte> bytes) {
  return reinterpret_cast<Bf16*>(Writable(bytes).data());
}

std::string_view FaultName(cuda::KvFault fault) {
  switch (fault) {
    case cuda::KvFault::kValues:
      return "values that it does not hold";
    case cuda::KvFault::kHead:
      return "a head of no tile";
    case cuda::KvFault::kTruncated:
      return "a tile that goes beyond the payload";
    case cuda::KvFault::kCodes:
      return "bytes of codes that are not those of its elements";
    case cuda::KvFault::kEscape:
      return "an escape beyond its tile";
    case cuda::KvFault::kEscapes:
      return "escapes that are not those of its elements";
    case cuda::KvFault::kFrequencies:
      return "frequencies that are not at least 1, 256 together";
    case cuda::KvFault::kState:
      return "a state out of range";
    case cuda::KvFault::kWords:
      return "words that do not add up";
    case cuda::KvFault::kLeftOver:
      return "bytes that are left over";
    case cuda::KvFault::kNone:
      break;
  }
  return "an unknown fault";
}

// An upper limit for a run of `raw_bytes`, and for every part of it.
size_t EncodedBytesMax(size_t raw_bytes) {
  return EncodedKvBound(KvRun{}) + raw_bytes + raw_bytes / 16;
}

}  // namespace

DeviceKvCodec::DeviceKvCodec(const cuda::CudaDevice& device, void* stream, size_t raw_bytes_max,
                             int processors)
    : device_(device), stream_(stream), raw_bytes_max_(raw_bytes_max), processors_(processors) {}

absl::StatusOr<std::unique_ptr<DeviceKvCodec>> DeviceKvCodec::Create(const cuda::CudaDevice& device,
                                                                     void* stream,
                                                                     size_t raw_bytes_max,
                                                                     int processors) {
  PENSTOCK_CHECK(raw_bytes_max > 0 && raw_bytes_max <= kKvRunBytesMax);
  PENSTOCK_CHECK_GT(processors, 0);
  std::unique_ptr<DeviceKvCodec> codec(
      new DeviceKvCodec(device, stream, raw_bytes_max, processors));
  RETURN_IF_ERROR(codec->Allocate());
  return codec;
}

absl::Status DeviceKvCodec::Allocate() {
  device_.Select();
  const auto elements = static_cast<uint32_t>(raw_bytes_max_ / sizeof(Bf16));
  const size_t tiles = cuda::LosslessTiles(elements, kLx16Tile);
  const size_t chunks =
      cuda::ChecksumChunks(static_cast<uint32_t>(EncodedBytesMax(raw_bytes_max_)));
  ASSIGN_OR_RETURN(tiles_, cuda::DeviceBuffer::Create(tiles * sizeof(cuda::KvTile), kWhat));
  const size_t segments = cuda::LosslessSegmentsMax(elements, kLx16Tile);
  ASSIGN_OR_RETURN(segments_,
                   cuda::DeviceBuffer::Create(segments * sizeof(cuda::KvSegment), kWhat));
  const size_t streams = kv_codec::CgxStreamsMax(elements);
  const size_t words =
      std::max(cuda::LxrScratchBytes(elements), cuda::CgxScratchBytes(elements, streams));
  ASSIGN_OR_RETURN(words_, cuda::DeviceBuffer::Create(words, kWhat));
  ASSIGN_OR_RETURN(streams_, cuda::DeviceBuffer::Create(streams * sizeof(cuda::CgxStream), kWhat));
  ASSIGN_OR_RETURN(partials_, cuda::DeviceBuffer::Create(chunks * sizeof(uint32_t), kWhat));
  ASSIGN_OR_RETURN(result_, cuda::DeviceBuffer::Create(sizeof(cuda::KvCodecResult), kWhat));
  ASSIGN_OR_RETURN(host_result_, cuda::PinnedBuffer::Create(sizeof(cuda::KvCodecResult), kWhat));
  ASSIGN_OR_RETURN(host_header_, cuda::PinnedBuffer::Create(kKvCodecHeaderBytes, kWhat));
  return cuda::TakeStatus(kWhat);
}

absl::Status DeviceKvCodec::LoadCalibration(const KvCalibration& calibration) {
  device_.Select();
  RETURN_IF_ERROR(calibration_.Load(calibration, stream_));
  return cuda::TakeStatus(kWhat);
}

absl::Status DeviceKvCodec::CheckRun(const KvCodecSpec& spec, const KvRun& run,
                                     const KvCodecContext& context) const {
  RETURN_IF_ERROR(CheckKvRun(spec, run, context));
  if (run.RawBytes() <= raw_bytes_max_) return absl::OkStatus();
  return InvalidArgument("KV run: {} bytes, the GPU's codecs have scratch for {}", run.RawBytes(),
                         raw_bytes_max_);
}

cuda::LosslessParams DeviceKvCodec::LosslessOf(const KvRun& run, Bf16* values,
                                               std::span<std::byte> payload) const {
  return {.values = values,
          .elements = static_cast<uint32_t>(run.Elements()),
          .payload = payload.data(),
          .payload_bytes = static_cast<uint32_t>(payload.size()),
          .tiles = tiles_.as<cuda::KvTile>(),
          .segments = segments_.as<cuda::KvSegment>(),
          .words = words_.as<std::byte>(),
          .result = result()};
}

absl::StatusOr<cuda::CgxParams> DeviceKvCodec::PrepareStreams(const kv_codec::PayloadPlan& plan,
                                                              int level,
                                                              const KvCalibration& calibration,
                                                              Bf16* values,
                                                              std::span<std::byte> payload) {
  RETURN_IF_ERROR(calibration_.Load(calibration, stream_));
  const std::vector<cuda::CgxStream> streams =
      kv_codec::CgxStreamsOf(plan.streams_run, calibration, level);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(streams));
  PENSTOCK_CHECK_LE(bytes.size(), streams_.bytes());
  cuda::CopyToDevice(streams_.as<void>(), bytes.data(), bytes.size(), stream_);
  cuda::CgxParams params = kv_codec::CgxParamsOf(plan, values, payload);
  params.units = calibration_.units(level);
  params.means = calibration_.means();
  params.streams = streams_.as<cuda::CgxStream>();
  params.stream_count = static_cast<uint32_t>(streams.size());
  params.words = words_.as<std::byte>();
  params.result = result();
  return params;
}

absl::Status DeviceKvCodec::EnqueueEncode(const KvCodecSpec& spec, const KvRun& run,
                                          const KvCodecContext& context, Bf16* values,
                                          std::byte* payload) {
  if (spec.codec == KvCodec::kLx16)
    cuda::EncodeLx16(LosslessOf(run, values, {payload, 0}), stream_);
  if (spec.codec == KvCodec::kLxr) cuda::EncodeLxr(LosslessOf(run, values, {payload, 0}), stream_);
  const kv_codec::PayloadPlan plan = kv_codec::PlanPayload(spec, run);
  if (plan.has_streams) {
    ASSIGN_OR_RETURN(cuda::CgxParams params,
                     PrepareStreams(plan, spec.level, *context.calibration, values, {payload, 0}));
    params.raw_bytes = static_cast<uint32_t>(run.RawBytes());
    cuda::EncodeCgx(params, stream_);
  }
  for (const kv_codec::FixedPart& part : plan.parts) {
    if (part.spec.codec == KvCodec::kKv2) {
      cuda::EncodeKv2(kv_codec::Kv2ParamsOf(part, values, payload, result()), stream_);
    } else {
      cuda::EncodeKvRows(kv_codec::RowsParamsOf(part, values, payload, result()), stream_);
    }
  }
  const size_t coded_bytes = plan.has_streams ? 0 : plan.fixed_bytes;
  cuda::SettlePayload({.raw = reinterpret_cast<const std::byte*>(values),
                       .raw_bytes = static_cast<uint32_t>(run.RawBytes()),
                       .payload = payload,
                       .coded_bytes = static_cast<uint32_t>(coded_bytes),
                       .result = result()},
                      processors_, stream_);
  return absl::OkStatus();
}

absl::Status DeviceKvCodec::EnqueueDecode(const KvCodecSpec& spec, const KvRun& run,
                                          const KvCodecContext& context,
                                          std::span<std::byte> payload, Bf16* values) {
  if (IsLossless(spec)) {
    const cuda::LosslessParams params = LosslessOf(run, values, payload);
    spec.codec == KvCodec::kLx16 ? cuda::DecodeLx16(params, stream_)
                                 : cuda::DecodeLxr(params, stream_);
    return absl::OkStatus();
  }
  const kv_codec::PayloadPlan plan = kv_codec::PlanPayload(spec, run);
  if (plan.has_streams ? payload.size() < plan.fixed_bytes : payload.size() != plan.fixed_bytes) {
    return DataLoss("KV codec {}: the payload has {} bytes, must be {}{}", KvCodecName(spec),
                    payload.size(), plan.fixed_bytes, plan.has_streams ? " at least" : "");
  }
  if (plan.has_streams) {
    ASSIGN_OR_RETURN(const cuda::CgxParams params,
                     PrepareStreams(plan, spec.level, *context.calibration, values, payload));
    cuda::DecodeCgx(params, stream_);
  }
  for (const kv_codec::FixedPart& part : plan.parts) {
    if (part.spec.codec == KvCodec::kKv2) {
      cuda::DecodeKv2(kv_codec::Kv2ParamsOf(part, values, payload.data(), result()), stream_);
    } else {
      cuda::DecodeKvRows(kv_codec::RowsParamsOf(part, values, payload.data(), result()), stream_);
    }
  }
  return absl::OkStatus();
}

void DeviceKvCodec::EnqueueChecksum(const std::byte* bytes, size_t size_max, const uint32_t* size) {
  cuda::ChecksumPayload({.bytes = bytes,
                         .size_max = static_cast<uint32_t>(size_max),
                         .size = size,
                         .partials = partials_.as<uint32_t>(),
                         .result = result()},
                        processors_, stream_);
}

absl::StatusOr<cuda::KvCodecResult> DeviceKvCodec::ReadResult() {
  cuda::CopyToHost(host_result_.as<void>(), result(), sizeof(cuda::KvCodecResult), stream_);
  cuda::Synchronize(stream_);
  RETURN_IF_ERROR(cuda::TakeStatus(kWhat));
  return *host_result_.as<cuda::KvCodecResult>();
}

absl::StatusOr<KvCodecHeader> DeviceKvCodec::ReadHeader(const std::byte* encoded) {
  cuda::CopyToHost(host_header_.as<void>(), encoded, kKvCodecHeaderBytes, stream_);
  cuda::Synchronize(stream_);
  RETURN_IF_ERROR(cuda::TakeStatus(kWhat));
  return DecodeKvCodecHeader({host_header_.as<std::byte>(), kKvCodecHeaderBytes});
}

absl::Status DeviceKvCodec::WriteHeader(const KvCodecHeader& header, std::byte* encoded) {
  const KvCodecHeaderBytes bytes = EncodeKvCodecHeader(header);
  std::memcpy(host_header_.as<std::byte>(), bytes.data(), bytes.size());
  cuda::CopyToDevice(encoded, host_header_.as<void>(), bytes.size(), stream_);
  cuda::Synchronize(stream_);
  return cuda::TakeStatus(kWhat);
}

absl::StatusOr<size_t> DeviceKvCodec::Encode(const KvCodecSpec& spec, const KvRun& run,
                                             const KvCodecContext& context,
                                             std::span<const std::byte> raw,
                                             std::span<std::byte> encoded) {
  RETURN_IF_ERROR(CheckRun(spec, run, context));
  PENSTOCK_CHECK_EQ(raw.size(), run.RawBytes());
  PENSTOCK_CHECK_GE(encoded.size(), EncodedKvBound(run));
  PENSTOCK_CHECK(IsAligned(raw.data()) && IsAligned(encoded.data()));
  device_.Select();
  std::byte* payload = encoded.data() + kKvCodecHeaderBytes;
  cuda::ClearKvCodecResult(result(), stream_);
  RETURN_IF_ERROR(EnqueueEncode(spec, run, context, ValuesIn(raw), payload));
  if (context.checksum) EnqueueChecksum(payload, raw.size(), &result()->payload_bytes);
  ASSIGN_OR_RETURN(const cuda::KvCodecResult done, ReadResult());
  KvCodecHeader header = kv_codec::HeaderOf(spec, run, context);
  header.stored = done.stored != 0;
  header.payload_bytes = done.payload_bytes;
  header.payload_crc = context.checksum ? done.checksum : 0;
  RETURN_IF_ERROR(WriteHeader(header, encoded.data()));
  return kKvCodecHeaderBytes + header.payload_bytes;
}

absl::Status DeviceKvCodec::Decode(const KvCodecSpec& spec, const KvRun& run,
                                   const KvCodecContext& context,
                                   std::span<const std::byte> encoded, std::span<std::byte> raw) {
  RETURN_IF_ERROR(CheckRun(spec, run, context));
  PENSTOCK_CHECK_EQ(raw.size(), run.RawBytes());
  PENSTOCK_CHECK(IsAligned(raw.data()) && IsAligned(encoded.data()));
  if (encoded.size() < kKvCodecHeaderBytes) {
    return DataLoss("KV codec header: {} bytes, must be {}", encoded.size(), kKvCodecHeaderBytes);
  }
  device_.Select();
  ASSIGN_OR_RETURN(const KvCodecHeader header, ReadHeader(encoded.data()));
  const std::span<const std::byte> payload = encoded.subspan(kKvCodecHeaderBytes);
  RETURN_IF_ERROR(kv_codec::CheckHeader(header, spec, run, context, payload.size()));
  if (payload.size() > EncodedBytesMax(run.RawBytes())) {
    return DataLoss("KV codec header: payload_bytes is {}, no run of {} bytes makes that many",
                    payload.size(), run.RawBytes());
  }
  cuda::ClearKvCodecResult(result(), stream_);
  if (header.stored) {
    cuda::CopyOnDevice(raw.data(), payload.data(), raw.size(), stream_);
  } else {
    RETURN_IF_ERROR(EnqueueDecode(spec, run, context, Writable(payload), ValuesIn(raw)));
  }
  if (header.checksum) EnqueueChecksum(payload.data(), payload.size(), nullptr);
  ASSIGN_OR_RETURN(const cuda::KvCodecResult done, ReadResult());
  if (done.fault != cuda::kNoKvFault) {
    return DataLoss("KV codec {}: {}, at {}", KvCodecName(spec),
                    FaultName(cuda::FaultOf(done.fault)), cuda::FaultPlace(done.fault));
  }
  if (header.checksum && done.checksum != header.payload_crc) {
    return DataLoss("KV codec header: payload checksum is {:#010x}, computed {:#010x}",
                    header.payload_crc, done.checksum);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> DeviceKvCodec::Checksum(std::span<const std::byte> bytes) {
  PENSTOCK_CHECK(IsAligned(bytes.data()));
  PENSTOCK_CHECK_LE(bytes.size(), EncodedBytesMax(raw_bytes_max_));
  device_.Select();
  cuda::ClearKvCodecResult(result(), stream_);
  EnqueueChecksum(bytes.data(), bytes.size(), nullptr);
  ASSIGN_OR_RETURN(const cuda::KvCodecResult done, ReadResult());
  return done.checksum;
}

}  // namespace penstock
