#include "kernels/cpu/kv_quant.h"
#include "kvstore/codec/codec_parts.h"

// Row-wise quantisation: f8, i8, i4r and k8v4. A row is one token's vector of one head; it has its
// own scale and minimum, as in TurboMind's KV cache (lmdeploy). i4r first rotates keys by a
// Hadamard transform, which spreads outliers over the channels (QuaRot, Ashkboos et al., NeurIPS
// 2024, arXiv 2404.00456).
//
// For each block and layer: codes [kv_head][plane][slot][dims * bits / 8], then parameters
// [kv_head][plane][slot][group] (scale and minimum; for f8 the scale alone), then the exact
// elements [kv_head][plane][slot][rope_dim]. A page of that format has the same layout.

namespace penstock::kv_codec {

PlaneFormat FormatOf(KvCodec codec, const KvRun& run, size_t plane) {
  const bool keys = plane == 0;
  if (codec == KvCodec::kK8v4) return {keys ? 8 : 4, false};
  // Rotating a latent would require folding the rotation into other weights, so only keys are
  // rotated.
  if (codec == KvCodec::kI4r) return {4, keys && run.planes == 2};
  return {8, false};
}

namespace {

size_t ParamBytes(KvCodec codec) {
  return codec == KvCodec::kF8 ? sizeof(Bf16) : sizeof(KvGroupParams);
}

// Bytes of a row's codes.
size_t CodeBytes(const PlaneFormat& format, const KvRun& run) {
  return static_cast<size_t>(QuantisedDims(run) * format.bits / 8);
}

}  // namespace

RowsLayer RowsLayerOf(KvCodec codec, const KvRun& run) {
  RowsLayer parts;
  for (size_t plane = 0; plane < run.planes; ++plane) {
    parts.params +=
        size_t{run.kv_heads} * run.block_tokens * CodeBytes(FormatOf(codec, run, plane), run);
  }
  const size_t rows = size_t{run.kv_heads} * run.planes * run.block_tokens;
  parts.exact = parts.params + rows * GroupsOf(run) * ParamBytes(codec);
  parts.bytes = parts.exact + rows * run.rope_dim * sizeof(Bf16);
  return parts;
}

namespace {

// Calls `call` for each group of rows without gaps: all slots of a plane, or one slot's groups when
// exact elements lie in between.
template <class Call>
void ForRuns(const KvRun& run, const Call& call) {
  const size_t groups = GroupsOf(run);
  if (run.rope_dim == 0) return call(size_t{0}, run.block_tokens * groups);
  for (size_t slot = 0; slot < run.block_tokens; ++slot) call(slot, groups);
}

F8Format F8Of(const KvCodecSpec& spec) {
  return spec.level == 0 ? F8Format::kE4m3 : F8Format::kE5m2;
}

void EncodeRun(const KvCodecSpec& spec, const PlaneFormat& format, const Bf16* values, size_t rows,
               int dims, uint8_t* codes, uint8_t* params) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  const auto count = static_cast<int64_t>(rows);
  if (spec.codec == KvCodec::kF8) {
    ops.encode_f8(values, count, dims, F8Of(spec), codes, reinterpret_cast<Bf16*>(params));
  } else if (format.bits == 8) {
    ops.encode_i8(values, count, dims, codes, reinterpret_cast<KvGroupParams*>(params));
  } else {
    ops.encode_i4(values, count, dims, format.rotate, codes,
                  reinterpret_cast<KvGroupParams*>(params));
  }
}

void DecodeRun(const KvCodecSpec& spec, const PlaneFormat& format, const uint8_t* codes,
               const uint8_t* params, size_t rows, int dims, Bf16* values) {
  const KvQuantOps& ops = ActiveKvQuantOps();
  const auto count = static_cast<int64_t>(rows);
  if (spec.codec == KvCodec::kF8) {
    ops.decode_f8(codes, reinterpret_cast<const Bf16*>(params), count, dims, F8Of(spec), values);
  } else if (format.bits == 8) {
    ops.decode_i8(codes, reinterpret_cast<const KvGroupParams*>(params), count, dims, values);
  } else {
    ops.decode_i4(codes, reinterpret_cast<const KvGroupParams*>(params), count, dims, format.rotate,
                  values);
  }
}

// Calls plane(format, elements before it, code bytes before it, rows before it) for each plane of
// each head.
template <class Call>
void ForPlanes(KvCodec codec, const KvRun& run, const Call& call) {
  size_t codes = 0, rows = 0;
  for (size_t head = 0; head < run.kv_heads; ++head) {
    for (size_t plane = 0; plane < run.planes; ++plane, rows += run.block_tokens) {
      const PlaneFormat format = FormatOf(codec, run, plane);
      call(format, (head * run.planes + plane) * run.PieceElements(), codes, rows);
      codes += run.block_tokens * CodeBytes(format, run);
    }
  }
}

void EncodeLayer(const KvCodecSpec& spec, const KvRun& run, const RowsLayer& parts,
                 const Bf16* values, uint8_t* layer) {
  const size_t row_params = GroupsOf(run) * ParamBytes(spec.codec);
  const size_t dims = QuantisedDims(run), exact_bytes = run.rope_dim * sizeof(Bf16);
  ForPlanes(spec.codec, run, [&](const PlaneFormat& format, size_t at, size_t codes, size_t rows) {
    ForRuns(run, [&](size_t slot, size_t count) {
      EncodeRun(spec, format, values + at + slot * run.head_dim, count, GroupDims(run),
                layer + codes + slot * CodeBytes(format, run),
                layer + parts.params + (rows + slot) * row_params);
    });
    for (size_t slot = 0; slot < (run.rope_dim == 0 ? 0 : run.block_tokens); ++slot) {
      std::memcpy(layer + parts.exact + (rows + slot) * exact_bytes,
                  values + at + slot * run.head_dim + dims, exact_bytes);
    }
  });
}

void DecodeLayer(const KvCodecSpec& spec, const KvRun& run, const RowsLayer& parts,
                 const uint8_t* layer, Bf16* values) {
  const size_t row_params = GroupsOf(run) * ParamBytes(spec.codec);
  const size_t dims = QuantisedDims(run), exact_bytes = run.rope_dim * sizeof(Bf16);
  ForPlanes(spec.codec, run, [&](const PlaneFormat& format, size_t at, size_t codes, size_t rows) {
    ForRuns(run, [&](size_t slot, size_t count) {
      DecodeRun(spec, format, layer + codes + slot * CodeBytes(format, run),
                layer + parts.params + (rows + slot) * row_params, count, GroupDims(run),
                values + at + slot * run.head_dim);
    });
    for (size_t slot = 0; slot < (run.rope_dim == 0 ? 0 : run.block_tokens); ++slot) {
      std::memcpy(values + at + slot * run.head_dim + dims,
                  layer + parts.exact + (rows + slot) * exact_bytes, exact_bytes);
    }
  });
}

}  // namespace

bool EncodeRows(const KvCodecSpec& spec, const KvRun& run, const Bf16* values,
                PayloadWriter& writer) {
  const RowsLayer parts = RowsLayerOf(spec.codec, run);
  for (size_t i = 0; i < size_t{run.blocks} * run.layers; ++i, values += run.LayerElements()) {
    uint8_t* layer = writer.Take(parts.bytes);
    if (layer == nullptr || !FitsQuantised(run, values)) return false;
    EncodeLayer(spec, run, parts, values, layer);
    writer.Sum();
  }
  return true;
}

absl::Status DecodeRows(const KvCodecSpec& spec, const KvRun& run, PayloadReader& reader,
                        Bf16* values) {
  const RowsLayer parts = RowsLayerOf(spec.codec, run);
  for (size_t i = 0; i < size_t{run.blocks} * run.layers; ++i, values += run.LayerElements()) {
    const uint8_t* layer = reader.Take(parts.bytes);
    if (layer == nullptr) return Truncated(KvCodecName(spec), "a layer");
    DecodeLayer(spec, run, parts, layer, values);
  }
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
