#include <algorithm>

#include "kernels/cuda/device/cgx.cuh"
#include "kernels/cuda/device/find_tiles.cuh"
#include "kernels/cuda/device/kv2.cuh"
#include "kernels/cuda/device/kv_lxr.cuh"
#include "kernels/cuda/device/kv_payload.cuh"
#include "kernels/cuda/device/kv_rows_kernels.cuh"
#include "kernels/cuda/device/kv_rows_wide.cuh"
#include "kernels/cuda/kv_codec.h"
#include "kernels/cuda/runtime.h"

namespace penstock::cuda {
namespace {

LosslessTilesParams TilesOf(const LosslessParams& params, uint32_t tile_elements) {
  return {.lossless = params,
          .tiles = LosslessTiles(params.elements, tile_elements),
          .tile_elements = tile_elements,
          .segments = std::min(LosslessSegments(params.payload_bytes, tile_elements),
                               LosslessSegmentsMax(params.elements, tile_elements)),
          .entropy = tile_elements == kLxrTile};
}
LaunchShape TileShape(const LosslessTilesParams& all, size_t shared_bytes) {
  return {.x = static_cast<int>(all.tiles), .threads = kTileThreads, .shared_bytes = shared_bytes};
}
constexpr LaunchShape kOneBlock = {.threads = kTileThreads, .shared_bytes = kBoardBytes};
LaunchShape PlaceShape(const LosslessTilesParams& all) {
  return {.x = static_cast<int>((all.tiles + kPlaceThreads - 1) / kPlaceThreads),
          .threads = kPlaceThreads,
          .shared_bytes = kPlaceWarps * 4};
}
constexpr LaunchShape kOneWarp = {.threads = 32};

void FindTiles(const LosslessTilesParams& all, void* stream) {
  const auto segments = static_cast<int>(all.segments);
  Launch(&FindTilesKernel,
         {.x = segments, .threads = kFindThreads, .shared_bytes = sizeof(FirstHeads)}, all, stream);
  Launch(&PlaceFoundTilesKernel,
         {.x = (segments + kFindThreads - 1) / kFindThreads,
          .threads = kFindThreads,
          .shared_bytes = kFindWarps * 4},
         all, stream);
}

}  // namespace

void ClearKvCodecResult(KvCodecResult* result, void* stream) {
  FillDevice(result, 0xff, sizeof(*result), stream);
}

void EncodeLx16(const LosslessParams& params, void* stream) {
  const LosslessTilesParams all = TilesOf(params, kLx16Tile);
  Launch(&SizeLx16Kernel, TileShape(all, kTileSharedBytes), all, stream);
  Launch(&PlaceTilesKernel, PlaceShape(all), all, stream);
  Launch(&WriteLx16Kernel, TileShape(all, kBoardBytes), all, stream);
}

void DecodeLx16(const LosslessParams& params, void* stream) {
  const LosslessTilesParams all = TilesOf(params, kLx16Tile);
  FindTiles(all, stream);
  Launch(&DecodeLx16Kernel, TileShape(all, 0), all, stream);
}

void EncodeLxr(const LosslessParams& params, void* stream) {
  const LosslessTilesParams all = TilesOf(params, kLxrTile);
  const LaunchShape warps{
      .x = static_cast<int>(all.tiles), .threads = 32, .shared_bytes = kLxrEncodeShared};
  Launch(
      &SplitLxrKernel,
      {.x = static_cast<int>(all.tiles), .threads = kSplitThreads, .shared_bytes = kLxrSplitShared},
      all, stream);
  Launch(&EncodeWordsKernel, warps, all, stream);
  Launch(&PlaceTilesKernel, PlaceShape(all), all, stream);
  Launch(&WriteLxrKernel, TileShape(all, kBoardBytes), all, stream);
}

void DecodeLxr(const LosslessParams& params, void* stream) {
  const LosslessTilesParams all = TilesOf(params, kLxrTile);
  const LaunchShape warps{
      .x = static_cast<int>(all.tiles), .threads = 32, .shared_bytes = kLxrDecodeShared};
  FindTiles(all, stream);
  Launch(&DecodeLxrKernel, warps, all, stream);
}

namespace {

// Calls launch<elements per lane>() with the common sizes as compile-time constants.
template <class Call>
void ForDims(uint32_t dims, const Call& call) {
  if (dims == 64) return call.template operator()<2>();
  if (dims == 128) return call.template operator()<4>();
  call.template operator()<kRowElementsMax>();
}
KvRowsKernelParams RowsOf(const KvRowsParams& p) {
  return {.rows = p, .count = uint64_t{p.layers} * p.heads * p.planes * p.slots * p.groups};
}
WideRowsParams WideRowsOf(const KvRowsParams& p, uint32_t rows_of_unit) {
  const uint32_t units = (p.slots * p.groups + rows_of_unit - 1) / rows_of_unit;
  return {.rows = p, .units = units, .total_units = p.layers * p.heads * p.planes * units};
}
LaunchShape WideShape(const WideRowsParams& all) {
  return {.x = static_cast<int>((all.total_units + kRowsWarps - 1) / kRowsWarps),
          .threads = kRowsWarps * 32};
}
// Calls launch<octets per lane>() for rows that WideUnit supports. Returns false for others.
template <class Call>
bool ForOctets(const KvRowsParams& params, const Call& call) {
  if (!IsWide(params)) return false;
  if (params.dims == 64) {
    call.template operator()<2>();
  } else {
    call.template operator()<4>();
  }
  return true;
}
LaunchShape RowsShape(const KvRowsKernelParams& all) {
  return {.x = static_cast<int>((all.count + kRowsWarps - 1) / kRowsWarps),
          .threads = kRowsWarps * 32};
}

}  // namespace

void EncodeKvRows(const KvRowsParams& params, void* stream) {
  const bool wide = ForOctets(params, [&]<int kOctets>() {
    const WideRowsParams all = WideRowsOf(params, WideUnit<kOctets>::kRows);
    Launch(&EncodeWideRowsKernel<kOctets>, WideShape(all), all, stream);
  });
  if (wide) return;
  const KvRowsKernelParams all = RowsOf(params);
  ForDims(params.dims, [&]<int kElements>() {
    Launch(&EncodeRowsKernel<kElements>, RowsShape(all), all, stream);
  });
}

void DecodeKvRows(const KvRowsParams& params, void* stream) {
  const bool wide = ForOctets(params, [&]<int kOctets>() {
    const WideRowsParams all = WideRowsOf(params, WideUnit<kOctets>::kRows);
    Launch(&DecodeWideRowsKernel<kOctets>, WideShape(all), all, stream);
  });
  if (wide) return;
  const KvRowsKernelParams all = RowsOf(params);
  ForDims(params.dims, [&]<int kElements>() {
    Launch(&DecodeRowsKernel<kElements>, RowsShape(all), all, stream);
  });
}

void EncodeKv2(const Kv2Params& params, void* stream) {
  Launch(&EncodeKv2Kernel,
         {.x = static_cast<int>(params.layers * params.heads * params.planes),
          .threads = kKv2Threads,
          .shared_bytes = Kv2SharedBytes(params.slots, params.dims)},
         params, stream);
}

void DecodeKv2(const Kv2Params& params, void* stream) {
  Launch(
      &DecodeKv2Kernel,
      {.x = static_cast<int>(params.layers * params.heads * params.planes), .threads = kKv2Threads},
      params, stream);
}

namespace {

template <bool kEncode>
void MoveExact(const CgxParams& params, void* stream) {
  if (params.exact == 0) return;
  const uint64_t rows = uint64_t{params.blocks} * params.units_of_block * params.slots;
  Launch(&CgxExactKernel<kEncode>,
         {.x = static_cast<int>((rows + kCgxExactWarps - 1) / kCgxExactWarps),
          .threads = kCgxExactWarps * 32},
         params, stream);
}

}  // namespace

void EncodeCgx(const CgxParams& params, void* stream) {
  LaunchShape warps{.x = static_cast<int>(params.stream_count), .threads = 32};
  const LaunchShape plain = warps;
  warps.shared_bytes = kCgxEncodeShared;
  Launch(&EncodeCgxWordsKernel, warps, params, stream);
  Launch(&PlaceCgxKernel, kOneBlock, params, stream);
  Launch(&WriteCgxKernel, plain, params, stream);
  MoveExact<true>(params, stream);
}

void DecodeCgx(const CgxParams& params, void* stream) {
  const LaunchShape warps{
      .x = static_cast<int>(params.stream_count), .threads = 32, .shared_bytes = kRansDecodeShared};
  Launch(&FindCgxKernel, kOneWarp, params, stream);
  Launch(&DecodeCgxKernel, warps, params, stream);
  MoveExact<false>(params, stream);
}

void SettlePayload(const SettleParams& params, int processors, void* stream) {
  const LaunchShape shape{.x = processors, .threads = kPayloadWarps * 32};
  const auto threads = static_cast<uint32_t>(shape.x * shape.threads);
  Launch(&SettlePayloadKernel, shape, SettleKernelParams{.settle = params, .threads = threads},
         stream);
}

void ChecksumPayload(const ChecksumParams& params, int processors, void* stream) {
  static const CrcTables kTables = MakeCrcTables();
  static const CrcPowers kPowers = MakeCrcPowers();
  const auto chunks = static_cast<int>(ChecksumChunks(params.size_max));
  const int blocks = std::min(processors, (chunks + kPayloadWarps - 1) / kPayloadWarps);
  const ChecksumKernelParams sums{.checksum = params,
                                  .tables = kTables,
                                  .warps = static_cast<uint32_t>(blocks) * kPayloadWarps};
  Launch(&ChecksumKernel,
         {.x = blocks, .threads = kPayloadWarps * 32, .shared_bytes = kCrcSharedBytes}, sums,
         stream);
  const FoldKernelParams fold{
      .checksum = params, .powers = kPowers, .chunk = CrcPower(kChecksumChunkBytes * 8)};
  Launch(&FoldChecksumKernel, kOneWarp, fold, stream);
}

}  // namespace penstock::cuda
