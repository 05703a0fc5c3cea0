#include "kvstore/codec/codec.h"

#include <algorithm>

#include "base/crc32c.h"
#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/codec_header.h"
#include "kvstore/codec/codec_parts.h"

namespace penstock {
namespace {

using kv_codec::HasProtectedBlocks;
using kv_codec::kProtected;
using kv_codec::PayloadReader;
using kv_codec::PayloadWriter;
using kv_codec::RunParts;

bool EncodeMiddle(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                  const Bf16* values, PayloadWriter& writer) {
  if (spec.codec == KvCodec::kKv2) return kv_codec::EncodeKv2(run, values, writer);
  return kv_codec::EncodeCgx(spec, run, *context.calibration, values, writer);
}

absl::Status DecodeMiddle(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                          PayloadReader& reader, Bf16* values) {
  if (spec.codec == KvCodec::kKv2) return kv_codec::DecodeKv2(run, reader, values);
  return kv_codec::DecodeCgx(spec, run, *context.calibration, reader, values);
}

// False when the values must be stored without encoding.
bool EncodePayload(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                   const Bf16* values, PayloadWriter& writer) {
  if (spec.codec == KvCodec::kRaw) return false;
  if (spec.codec == KvCodec::kLx16) return kv_codec::EncodeLx16(values, run.Elements(), writer);
  if (spec.codec == KvCodec::kLxr) return kv_codec::EncodeLxr(values, run.Elements(), writer);
  if (!HasProtectedBlocks(spec)) return kv_codec::EncodeRows(spec, run, values, writer);
  const RunParts parts(run);
  const Bf16* middle = values + parts.first.Elements();
  return kv_codec::EncodeRows(kProtected, parts.first, values, writer) &&
         EncodeMiddle(spec, parts.middle, context, middle, writer) &&
         kv_codec::EncodeRows(kProtected, parts.last, middle + parts.middle.Elements(), writer);
}

absl::Status DecodePayload(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                           PayloadReader& reader, Bf16* values) {
  if (spec.codec == KvCodec::kLx16) return kv_codec::DecodeLx16(reader, run.Elements(), values);
  if (spec.codec == KvCodec::kLxr) return kv_codec::DecodeLxr(reader, run.Elements(), values);
  if (!HasProtectedBlocks(spec)) return kv_codec::DecodeRows(spec, run, reader, values);
  const RunParts parts(run);
  Bf16* middle = values + parts.first.Elements();
  RETURN_IF_ERROR(kv_codec::DecodeRows(kProtected, parts.first, reader, values));
  RETURN_IF_ERROR(DecodeMiddle(spec, parts.middle, context, reader, middle));
  return kv_codec::DecodeRows(kProtected, parts.last, reader, middle + parts.middle.Elements());
}

absl::Status CheckGeometry(const KvRun& run) {
  const double bytes =
      2.0 * run.blocks * run.layers * run.kv_heads * run.planes * run.block_tokens * run.head_dim;
  if (bytes == 0 || bytes > static_cast<double>(kKvRunBytesMax)) {
    return InvalidArgument("KV run: {} bytes, must be 1 to {}", bytes, kKvRunBytesMax);
  }
  if (run.PieceElements() % 64 != 0) {
    return InvalidArgument("KV run: block_tokens {} times head_dim {} is not a multiple of 64",
                           run.block_tokens, run.head_dim);
  }
  if (run.planes != 1 && run.planes != 2) {
    return InvalidArgument("KV run: planes is {}, must be 1 or 2", run.planes);
  }
  if (run.rope_dim >= run.head_dim) {
    return InvalidArgument("KV run: rope_dim {} must be less than head_dim {}", run.rope_dim,
                           run.head_dim);
  }
  if (uint32_t{run.protected_first} + run.protected_last > run.blocks) {
    return InvalidArgument("KV run: protected_first {} plus protected_last {} exceed the {} blocks",
                           run.protected_first, run.protected_last, run.blocks);
  }
  return absl::OkStatus();
}

absl::Status CheckCalibration(const KvRun& run, const KvCalibration* calibration) {
  if (calibration == nullptr) {
    return InvalidArgument("KV codec cgx needs a calibration; `penstock calibrate` makes it");
  }
  const KvCalibration::Geometry& has = calibration->geometry();
  const bool fits = run.first_layer + run.layers <= has.layers && run.kv_heads == has.kv_heads &&
                    run.planes == has.planes && run.head_dim == has.head_dim &&
                    run.rope_dim == has.rope_dim;
  if (fits) return absl::OkStatus();
  return InvalidArgument(
      "KV calibration: layers {}, kv_heads {}, planes {}, head_dim {}, rope_dim {} are not those "
      "of the run: {}, {}, {}, {}, {}",
      has.layers, has.kv_heads, has.planes, has.head_dim, has.rope_dim,
      run.first_layer + run.layers, run.kv_heads, run.planes, run.head_dim, run.rope_dim);
}

}  // namespace

KvRun WithProtectedBlocks(KvRun run, uint32_t sequence_blocks) {
  constexpr uint32_t kSinkBlocks = 1, kRecentTokens = 128;
  const uint32_t recent = (kRecentTokens + run.block_tokens - 1) / run.block_tokens;
  const uint32_t last = run.first_block + run.blocks;
  PENSTOCK_CHECK_LE(last, sequence_blocks);
  run.protected_first = run.first_block < kSinkBlocks ? kSinkBlocks : 0;
  const uint32_t recent_from =
      std::max(sequence_blocks - std::min(recent, sequence_blocks), kSinkBlocks);
  if (last > recent_from) {
    run.protected_last =
        static_cast<uint16_t>(std::min(last - recent_from, run.blocks - run.protected_first));
  }
  return run;
}

KvRun RunOf(const KvLayout& layout, uint32_t first_block, uint32_t blocks, uint16_t first_layer,
            uint16_t layers) {
  return {.first_block = first_block,
          .blocks = blocks,
          .first_layer = first_layer,
          .layers = layers,
          .kv_heads = static_cast<uint16_t>(layout.kv_heads),
          .planes = static_cast<uint16_t>(layout.Planes()),
          .block_tokens = static_cast<uint16_t>(layout.block_tokens),
          .head_dim = static_cast<uint16_t>(layout.head_dim),
          .rope_dim = static_cast<uint16_t>(layout.latent_rope_dim)};
}

absl::Status CheckKvRun(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context) {
  RETURN_IF_ERROR(CheckGeometry(run));
  if (IsLossless(spec)) return absl::OkStatus();
  const int dims = kv_codec::QuantisedDims(run);
  if (dims % 32 != 0 || kv_codec::GroupDims(run) > kQuantisedGroupMax ||
      dims > kQuantisedGroupMax) {
    return InvalidArgument(
        "KV run: head_dim {} less rope_dim {} must be a multiple of 32, at most {}, for codec {}",
        run.head_dim, run.rope_dim, kQuantisedGroupMax, KvCodecName(spec));
  }
  if (run.block_tokens % 4 != 0) {
    return InvalidArgument("KV run: block_tokens {} is not a multiple of 4, for codec {}",
                           run.block_tokens, KvCodecName(spec));
  }
  return NeedsCalibration(spec) ? CheckCalibration(run, context.calibration) : absl::OkStatus();
}

size_t EncodedKvBound(const KvRun& run) {
  return kKvCodecHeaderBytes + run.RawBytes() + run.RawBytes() / 16 + 4096;
}

absl::StatusOr<size_t> EncodeKv(const KvCodecSpec& spec, const KvRun& run,
                                const KvCodecContext& context, std::span<const std::byte> raw,
                                std::span<std::byte> encoded) {
  RETURN_IF_ERROR(CheckKvRun(spec, run, context));
  PENSTOCK_CHECK_EQ(raw.size(), run.RawBytes());
  PENSTOCK_CHECK_GE(encoded.size(), EncodedKvBound(run));
  const std::span<std::byte> payload = encoded.subspan(kKvCodecHeaderBytes);
  const auto* values = reinterpret_cast<const Bf16*>(raw.data());
  KvCodecHeader header = kv_codec::HeaderOf(spec, run, context);
  PayloadWriter writer(payload, context.checksum);
  if (EncodePayload(spec, run, context, values, writer) && writer.size() < raw.size()) {
    header.payload_bytes = static_cast<uint32_t>(writer.size());
    header.payload_crc = writer.crc();
  } else {
    std::memcpy(payload.data(), raw.data(), raw.size());
    header.stored = true;
    header.payload_bytes = static_cast<uint32_t>(raw.size());
    header.payload_crc = context.checksum ? Crc32c(raw) : 0;
  }
  const KvCodecHeaderBytes bytes = EncodeKvCodecHeader(header);
  std::memcpy(encoded.data(), bytes.data(), bytes.size());
  return kKvCodecHeaderBytes + header.payload_bytes;
}

absl::Status DecodeKv(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                      std::span<const std::byte> encoded, std::span<std::byte> raw) {
  RETURN_IF_ERROR(CheckKvRun(spec, run, context));
  PENSTOCK_CHECK_EQ(raw.size(), run.RawBytes());
  if (encoded.size() < kKvCodecHeaderBytes) {
    return DataLoss("KV codec header: {} bytes, must be {}", encoded.size(), kKvCodecHeaderBytes);
  }
  ASSIGN_OR_RETURN(const KvCodecHeader header,
                   DecodeKvCodecHeader(encoded.first(kKvCodecHeaderBytes)));
  const std::span<const std::byte> payload = encoded.subspan(kKvCodecHeaderBytes);
  RETURN_IF_ERROR(kv_codec::CheckHeader(header, spec, run, context, payload.size()));
  PayloadReader reader(payload, header.checksum);
  if (header.stored) {
    std::memcpy(raw.data(), reader.Take(payload.size()), raw.size());
  } else {
    RETURN_IF_ERROR(DecodePayload(spec, run, context, reader, reinterpret_cast<Bf16*>(raw.data())));
  }
  if (reader.left() != 0) {
    return DataLoss("KV codec {}: {} bytes are left over", KvCodecName(spec), reader.left());
  }
  if (header.checksum && reader.crc() != header.payload_crc) {
    return DataLoss("KV codec header: payload checksum is {:#010x}, computed {:#010x}",
                    header.payload_crc, reader.crc());
  }
  return absl::OkStatus();
}

}  // namespace penstock
