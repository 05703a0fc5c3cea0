#include "kvstore/handoff/handoff_slabs.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/page_copier.h"
#include "kvstore/codec/codec_header.h"

namespace penstock {
namespace {

// The bytes of one block in the slab. Its layers are contiguous in the page.
size_t PieceBytes(const PagedKv& kv, const SlabHeader& header, size_t pages, size_t payload) {
  const size_t piece =
      kv.layout.BytesOf(header.first_layer, header.first_layer + int32_t{header.layers});
  PENSTOCK_CHECK_LE(header.first_layer + header.layers, kv.layout.layers);
  PENSTOCK_CHECK_EQ(pages, header.blocks);
  PENSTOCK_CHECK_EQ(payload, piece * pages);
  return piece;
}

}  // namespace

void GatherSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                std::span<std::byte> payload) {
  const size_t piece = PieceBytes(kv, header, pages.size(), payload.size());
  ReadPages(kv, pages, kv.layout.BytesBefore(header.first_layer), piece, payload.data());
}

void ScatterSlab(const PagedKv& kv, const SlabHeader& header, std::span<const uint32_t> pages,
                 std::span<const std::byte> payload) {
  const size_t piece = PieceBytes(kv, header, pages.size(), payload.size());
  WritePages(kv, pages, kv.layout.BytesBefore(header.first_layer), piece, payload.data());
}

absl::Status CheckPayload(const SlabHeader& header, uint32_t crc) {
  if (crc == header.payload_crc) return absl::OkStatus();
  return DataLoss("its checksum is {:08x}, not {:08x}", crc, header.payload_crc);
}

KvRun RunOfSlab(const KvLayout& layout, const SlabHeader& header, uint32_t sequence_blocks) {
  return WithProtectedBlocks(
      RunOf(layout, header.first_block, header.blocks, header.first_layer, header.layers),
      sequence_blocks);
}

absl::Status CheckCodec(const SlabDecoding& how, const SlabHeader& header,
                        const KvCodecSpec& codec) {
  if (std::find(how.allowed.begin(), how.allowed.end(), codec) != how.allowed.end()) {
    return absl::OkStatus();
  }
  return FailedPrecondition("slab {}: KV codec {} is not among those that this worker accepts",
                            header.sequence, KvCodecName(codec));
}

absl::Status DecodeSlab(const SlabDecoding& how, const SlabHeader& header,
                        std::span<const std::byte> payload, std::span<std::byte> raw) {
  if (payload.size() < kKvCodecHeaderBytes) {
    return DataLoss("slab {}: {} bytes are too few for a KV codec header", header.sequence,
                    payload.size());
  }
  ASSIGN_OR_RETURN(const KvCodecHeader encoded,
                   DecodeKvCodecHeader(payload.first(kKvCodecHeaderBytes)));
  RETURN_IF_ERROR(CheckCodec(how, header, encoded.spec));
  return DecodeKv(encoded.spec, RunOfSlab(how.layout, header, how.sequence_blocks),
                  {.calibration = how.calibration}, payload, raw);
}

}  // namespace penstock
