#pragma once

#include <vector>

#include "kernels/cuda/kv_codec.h"
#include "kvstore/codec.h"

// What DeviceKvCodec tells the kernels of a run. Included by kvstore/device_kv_codec*.cc only.

namespace penstock::kv_codec {

// Blocks of a run in a codec whose payload's size does not depend on the values.
struct FixedPart {
  KvCodecSpec spec;
  KvRun run;
  size_t values = 0;   // elements before them
  size_t payload = 0;  // bytes before theirs
  size_t bytes = 0;
};
// In order; none where the size depends on the values.
std::vector<FixedPart> FixedPartsOf(const KvCodecSpec& spec, const KvRun& run);
// 0 where it depends on the values.
size_t FixedBytesOf(const std::vector<FixedPart>& parts);

// `part` has f8, i8, i4r or k8v4; `values` and `payload` are those of the whole run.
cuda::KvRowsParams RowsParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                                cuda::KvCodecResult* result);

// `part` has kv2.
cuda::Kv2Params Kv2ParamsOf(const FixedPart& part, Bf16* values, std::byte* payload,
                            cuda::KvCodecResult* result);

}  // namespace penstock::kv_codec
