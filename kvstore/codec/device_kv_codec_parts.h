#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kv_codec.h"
#include "kvstore/codec/codec.h"

// The kernels' view of a run. Included by device_kv_codec*.cc only.

namespace penstock::kv_codec {

// Blocks of a run whose encoded size does not depend on the values.
struct FixedPart {
  KvCodecSpec spec;
  KvRun run;
  size_t values = 0;   // elements before them
  size_t payload = 0;  // bytes before them, or after the cgx streams
  size_t bytes = 0;
  bool behind_streams = false;
};
// The parts of a lossy codec's payload.
struct PayloadPlan {
  std::vector<FixedPart> parts;  // in order
  size_t fixed_bytes = 0;        // sum over all parts
  // The cgx streams of a run of blocks, followed by its exact elements.
  bool has_streams = false;
  KvRun streams_run;
  size_t streams_values = 0;   // elements before them
  size_t streams_payload = 0;  // bytes before them
  size_t behind_bytes = 0;     // exact elements and the part behind
};
PayloadPlan PlanPayload(const KvCodecSpec& spec, const KvRun& run);

// `part` is in f8, i8, i4r or k8v4; `values` and `payload` are those of the whole run.
cuda::KvRowsParams RowsParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                                cuda::KvCodecResult* result);

// `part` is in kv2.
cuda::Kv2Params Kv2ParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                            cuda::KvCodecResult* result);

// The streams of the unprotected blocks of `run`.
std::vector<cuda::CgxStream> CgxStreamsOf(const KvRun& run, const KvCalibration& calibration,
                                          int level);
// The maximum number of streams in a run of `elements` elements.
constexpr size_t CgxStreamsMax(size_t elements) { return elements / 16384 + 2; }
// The parameters without pointers to device memory.
cuda::CgxParams CgxParamsOf(const PayloadPlan& plan, Bf16* values, std::span<std::byte> payload);

// A calibration in device memory, with all its levels. One thread at a time.
class DeviceCalibration {
 public:
  // Does nothing when it is loaded already. RESOURCE_EXHAUSTED names the allocation that failed.
  absl::Status Load(const KvCalibration& calibration, void* stream);
  const cuda::CgxUnit* units(int level) const {
    return units_.as<cuda::CgxUnit>() + static_cast<size_t>(level - 1) * units_of_level_;
  }
  const float* means() const { return means_.as<float>(); }

 private:
  uint64_t id_ = 0;
  size_t units_of_level_ = 0;
  cuda::DeviceBuffer units_, means_;
};

}  // namespace penstock::kv_codec
