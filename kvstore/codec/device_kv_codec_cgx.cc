#include <algorithm>

#include "kvstore/codec/codec_calibration.h"
#include "kvstore/codec/codec_parts.h"
#include "kvstore/codec/device_kv_codec_parts.h"

namespace penstock::kv_codec {
namespace {

size_t UnitsOfBlock(const KvRun& run) { return size_t{run.layers} * run.kv_heads * run.planes; }

// The table of a unit; units are numbered in the calibration's order, that of a run that begins at
// layer 0.
const KvCalibration::Table& TableOf(const KvCalibration& calibration, int level, size_t unit) {
  const size_t planes = calibration.geometry().planes, heads = calibration.geometry().kv_heads;
  return calibration.table(level, unit / planes / heads, unit / planes % heads, unit % planes);
}

size_t FirstUnit(const KvRun& run) { return size_t{run.first_layer} * run.kv_heads * run.planes; }

cuda::CgxUnit UnitOf(const KvCalibration& calibration, int level, size_t unit) {
  const KvCalibration::Geometry& geometry = calibration.geometry();
  const KvCalibration::Table& table = TableOf(calibration, level, unit);
  const size_t layer = unit / geometry.planes / geometry.kv_heads;
  cuda::CgxUnit result{.step = calibration.step(level, layer, unit % geometry.planes),
                       .low_bits = table.low_bits,
                       .frequencies = {}};
  std::ranges::copy(table.frequencies, result.frequencies);
  return result;
}

}  // namespace

std::vector<cuda::CgxStream> CgxStreamsOf(const KvRun& run, const KvCalibration& calibration,
                                          int level) {
  std::vector<cuda::CgxStream> streams;
  const size_t frame_blocks = CgxFrameBlocks(run), all = UnitsOfBlock(run);
  size_t symbols_before = 0;
  for (size_t first = 0; first < run.blocks; first += frame_blocks) {
    const size_t blocks = std::min<size_t>(frame_blocks, run.blocks - first);
    const size_t symbols = blocks * PieceSymbols(run);  // of one unit
    const size_t at_once = (kCgxStreamSymbols + symbols - 1) / symbols;
    for (size_t unit = 0; unit < all; unit += at_once) {
      const size_t units = std::min(at_once, all - unit);
      size_t low_bytes = 0;
      for (size_t u = unit; u < unit + units; ++u) {
        low_bytes += symbols / 8 * TableOf(calibration, level, FirstUnit(run) + u).low_bits;
      }
      streams.push_back({.first_block = static_cast<uint32_t>(first),
                         .first_unit = static_cast<uint32_t>(unit),
                         .units = static_cast<uint32_t>(units),
                         .symbols = static_cast<uint32_t>(units * symbols),
                         .symbols_before = static_cast<uint32_t>(symbols_before),
                         .low_bytes = static_cast<uint32_t>(low_bytes)});
      symbols_before += units * symbols;
    }
  }
  return streams;
}

cuda::CgxParams CgxParamsOf(const PayloadPlan& plan, Bf16* values, std::span<std::byte> payload) {
  const KvRun& run = plan.streams_run;
  return {.values = values + plan.streams_values,
          .payload = payload.data(),
          .payload_bytes = static_cast<uint32_t>(payload.size()),
          .first_byte = static_cast<uint32_t>(plan.streams_payload),
          .behind_bytes = static_cast<uint32_t>(plan.behind_bytes),
          .blocks = run.blocks,
          .units_of_block = static_cast<uint32_t>(UnitsOfBlock(run)),
          .first_unit = static_cast<uint32_t>(FirstUnit(run)),
          .slots = run.block_tokens,
          .dims = static_cast<uint32_t>(QuantisedDims(run)),
          .exact = run.rope_dim};
}

absl::Status DeviceCalibration::Load(const KvCalibration& calibration, void* stream) {
  if (calibration.id() == id_) return absl::OkStatus();
  id_ = 0;  // until the copy is complete
  const KvCalibration::Geometry& geometry = calibration.geometry();
  const size_t count = KvCalibration::Units(geometry);
  std::vector<cuda::CgxUnit> units;
  units.reserve(count * kCgxLevels);
  for (int level = 1; level <= kCgxLevels; ++level) {
    for (size_t u = 0; u < count; ++u) units.push_back(UnitOf(calibration, level, u));
  }
  const size_t means_bytes = count * (geometry.head_dim - geometry.rope_dim) * sizeof(float);
  const size_t units_bytes = units.size() * sizeof(cuda::CgxUnit);
  ASSIGN_OR_RETURN(units_, cuda::DeviceBuffer::Create(units_bytes, "a KV calibration"));
  ASSIGN_OR_RETURN(means_, cuda::DeviceBuffer::Create(means_bytes, "a KV calibration"));
  cuda::CopyToDevice(units_.as<void>(), units.data(), units_bytes, stream);
  // The means of all layers, heads and planes are contiguous.
  cuda::CopyToDevice(means_.as<void>(), calibration.mean(0, 0, 0), means_bytes, stream);
  id_ = calibration.id();
  units_of_level_ = count;
  return absl::OkStatus();
}

}  // namespace penstock::kv_codec
