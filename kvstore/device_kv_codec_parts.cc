#include "kvstore/device_kv_codec_parts.h"

#include "kvstore/codec_parts.h"

namespace penstock::kv_codec {
namespace {

cuda::KvRowCode RowCodeOf(const KvCodecSpec& spec, const KvRun& run, size_t plane) {
  if (spec.codec == KvCodec::kF8) {
    return spec.level == 0 ? cuda::KvRowCode::kF8E4m3 : cuda::KvRowCode::kF8E5m2;
  }
  const PlaneFormat format = FormatOf(spec.codec, run, plane);
  if (format.bits == 8) return cuda::KvRowCode::kI8;
  return format.rotate ? cuda::KvRowCode::kI4Rotated : cuda::KvRowCode::kI4;
}

uint32_t Word(size_t value) { return static_cast<uint32_t>(value); }

}  // namespace

std::vector<FixedPart> FixedPartsOf(const KvCodecSpec& spec, const KvRun& run) {
  std::vector<FixedPart> parts;
  if (IsLossless(spec)) return parts;
  parts.push_back({.spec = spec,
                   .run = run,
                   .bytes = size_t{run.blocks} * run.layers * RowsLayerOf(spec.codec, run).bytes});
  return parts;
}

size_t FixedBytesOf(const std::vector<FixedPart>& parts) {
  size_t bytes = 0;
  for (const FixedPart& part : parts) bytes += part.bytes;
  return bytes;
}

cuda::KvRowsParams RowsParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                                cuda::KvCodecResult* result) {
  const KvRun& run = part.run;
  const RowsLayer layer = RowsLayerOf(part.spec.codec, run);
  return {.values = values + part.values,
          .payload = payload + part.payload,
          .layers = run.blocks * run.layers,
          .heads = run.kv_heads,
          .planes = run.planes,
          .slots = run.block_tokens,
          .groups = Word(GroupsOf(run)),
          .dims = Word(static_cast<size_t>(GroupDims(run))),
          .exact = run.rope_dim,
          .codes = {RowCodeOf(part.spec, run, 0), RowCodeOf(part.spec, run, 1)},
          .scales_offset = Word(layer.params),
          .exact_offset = Word(layer.exact),
          .layer_bytes = Word(layer.bytes),
          .result = result};
}

}  // namespace penstock::kv_codec
