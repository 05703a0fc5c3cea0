#pragma once

#include <memory>

#include "kvstore/codec/device_kv_codec.h"
#include "kvstore/codec/slab_coder.h"

namespace penstock {

// DeviceKvCodec on a stream of its own, for slabs of at most `raw_bytes_max`. `device` outlives it.
// RESOURCE_EXHAUSTED says what found no room.
absl::StatusOr<std::unique_ptr<SlabCoder>> MakeDeviceSlabCoder(const cuda::CudaDevice& device,
                                                               size_t raw_bytes_max);

}  // namespace penstock
