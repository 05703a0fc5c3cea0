#include "kvstore/codec/device_kv_codec_parts.h"

#include "kvstore/codec/codec_parts.h"

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

// The size of one layer of a block in a row codec or in kv2.
size_t LayerBytesOf(const KvCodecSpec& spec, const KvRun& run) {
  if (spec.codec != KvCodec::kKv2) return RowsLayerOf(spec.codec, run).bytes;
  size_t bytes = 0;
  for (size_t plane = 0; plane < run.planes; ++plane) bytes += Kv2PieceBytes(run, plane);
  return bytes * run.kv_heads;
}

uint32_t Word(size_t value) { return static_cast<uint32_t>(value); }

}  // namespace

PayloadPlan PlanPayload(const KvCodecSpec& spec, const KvRun& run) {
  PayloadPlan plan;
  size_t values = 0, payload = 0;
  const auto append = [&](const KvCodecSpec& part_spec, const KvRun& part) {
    const size_t bytes = size_t{part.blocks} * part.layers * LayerBytesOf(part_spec, part);
    if (part.blocks > 0) {
      plan.parts.push_back({.spec = part_spec,
                            .run = part,
                            .values = values,
                            .payload = payload,
                            .bytes = bytes,
                            .behind_streams = plan.has_streams});
    }
    values += part.Elements();
    payload += bytes;
    plan.fixed_bytes += bytes;
  };
  if (IsLossless(spec)) return plan;
  if (!HasProtectedBlocks(spec)) {
    append(spec, run);
    return plan;
  }
  const RunParts split(run);
  append(kProtected, split.first);
  if (spec.codec == KvCodec::kKv2) {
    append(spec, split.middle);
  } else if (split.middle.blocks > 0) {
    plan.has_streams = true;
    plan.streams_run = split.middle;
    plan.streams_values = values;
    plan.streams_payload = payload;
    values += split.middle.Elements();
    payload = split.middle.Elements() / run.head_dim * run.rope_dim * sizeof(Bf16);
  }
  append(kProtected, split.last);
  if (plan.has_streams) plan.behind_bytes = payload;
  return plan;
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
          .behind_streams = part.behind_streams,
          .result = result};
}

cuda::Kv2Params Kv2ParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                            cuda::KvCodecResult* result) {
  const KvRun& run = part.run;
  return {.values = values + part.values,
          .payload = payload + part.payload,
          .layers = run.blocks * run.layers,
          .heads = run.kv_heads,
          .planes = run.planes,
          .slots = run.block_tokens,
          .dims = Word(static_cast<size_t>(QuantisedDims(run))),
          .exact = run.rope_dim,
          .result = result};
}

}  // namespace penstock::kv_codec
