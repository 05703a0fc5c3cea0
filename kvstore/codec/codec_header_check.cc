#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/codec_parts.h"

// Compares the header of an encoded run with the receiver's expectation.

namespace penstock::kv_codec {
namespace {

uint64_t CalibrationId(const KvCodecSpec& spec, const KvCodecContext& context) {
  return NeedsCalibration(spec) ? context.calibration->id() : 0;
}

// DATA_LOSS names the field of `is` that differs from `wanted`.
absl::Status CompareRuns(const KvRun& is, const KvRun& wanted) {
  const struct {
    std::string_view name;
    uint32_t is, wanted;
  } fields[] = {{"first_block", is.first_block, wanted.first_block},
                {"blocks", is.blocks, wanted.blocks},
                {"first_layer", is.first_layer, wanted.first_layer},
                {"layers", is.layers, wanted.layers},
                {"kv_heads", is.kv_heads, wanted.kv_heads},
                {"planes", is.planes, wanted.planes},
                {"block_tokens", is.block_tokens, wanted.block_tokens},
                {"head_dim", is.head_dim, wanted.head_dim},
                {"rope_dim", is.rope_dim, wanted.rope_dim},
                {"protected_first", is.protected_first, wanted.protected_first},
                {"protected_last", is.protected_last, wanted.protected_last}};
  for (const auto& field : fields) {
    if (field.is != field.wanted) {
      return DataLoss("KV codec header: {} is {}, expected {}", field.name, field.is, field.wanted);
    }
  }
  return absl::OkStatus();
}

}  // namespace

KvCodecHeader HeaderOf(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context) {
  return {.spec = spec,
          .checksum = context.checksum,
          .run = run,
          .calibration = CalibrationId(spec, context)};
}

absl::Status CheckHeader(const KvCodecHeader& header, const KvCodecSpec& spec, const KvRun& run,
                         const KvCodecContext& context, size_t payload_bytes) {
  if (!(header.spec == spec)) {
    return DataLoss("KV codec header: codec is {}, expected {}", KvCodecName(header.spec),
                    KvCodecName(spec));
  }
  RETURN_IF_ERROR(CompareRuns(header.run, run));
  if (header.calibration != CalibrationId(spec, context)) {
    return DataLoss("KV codec header: calibration is {:#x}, this side has {:#x}",
                    header.calibration, CalibrationId(spec, context));
  }
  if (header.payload_bytes != payload_bytes) {
    return DataLoss("KV codec header: payload_bytes is {}, {} are here", header.payload_bytes,
                    payload_bytes);
  }
  if (spec.codec == KvCodec::kRaw && !header.stored) {
    return DataLoss("KV codec header: flags say that raw bytes are coded");
  }
  if (header.stored && payload_bytes != run.RawBytes()) {
    return DataLoss("KV codec header: payload_bytes is {}, the raw bytes are {}", payload_bytes,
                    run.RawBytes());
  }
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
