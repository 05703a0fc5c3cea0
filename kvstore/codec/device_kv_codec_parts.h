#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kv_codec.h"
#include "kvstore/codec/codec.h"

// What DeviceKvCodec tells the kernels of a run. Included by kvstore/device_kv_codec* only.

namespace penstock::kv_codec {

// Blocks of a run in a codec whose bytes are as many for any values.
struct FixedPart {
  KvCodecSpec spec;
  KvRun run;
  size_t values = 0;   // elements before them
  size_t payload = 0;  // bytes before theirs, or behind the streams of cgx
  size_t bytes = 0;
  bool behind_streams = false;
};
// What a payload of a lossy codec consists of.
struct PayloadPlan {
  std::vector<FixedPart> parts;  // in order
  size_t fixed_bytes = 0;        // of all of them
  // Streams of cgx of a run of some blocks, its exact elements behind them.
  bool has_streams = false;
  KvRun streams_run;
  size_t streams_values = 0;   // elements before them
  size_t streams_payload = 0;  // bytes before them
  size_t behind_bytes = 0;     // of exact elements and the part behind
};
PayloadPlan PlanPayload(const KvCodecSpec& spec, const KvRun& run);

// `part` has f8, i8, i4r or k8v4; `values` and `payload` are those of the whole run.
cuda::KvRowsParams RowsParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                                cuda::KvCodecResult* result);

// `part` has kv2.
cuda::Kv2Params Kv2ParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                            cuda::KvCodecResult* result);

// Of the blocks of `run` that are not protected.
std::vector<cuda::CgxStream> CgxStreamsOf(const KvRun& run, const KvCalibration& calibration,
                                          int level);
// At most, in a run of so many elements.
constexpr size_t CgxStreamsMax(size_t elements) { return elements / 16384 + 2; }
// Without what lies in device memory.
cuda::CgxParams CgxParamsOf(const PayloadPlan& plan, Bf16* values, std::span<std::byte> payload);

// A calibration in device memory.
class DeviceCalibration {
 public:
  // Does nothing for what it has. RESOURCE_EXHAUSTED says what found no room.
  absl::Status Load(const KvCalibration& calibration, int level, void* stream);
  const cuda::CgxUnit* units() const { return units_.as<cuda::CgxUnit>(); }
  const float* means() const { return means_.as<float>(); }

 private:
  uint64_t id_ = 0;
  int level_ = 0;
  cuda::DeviceBuffer units_, means_;
};

}  // namespace penstock::kv_codec
