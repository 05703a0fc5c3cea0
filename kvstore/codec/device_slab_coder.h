#pragma once

#include <memory>

#include "kvstore/codec/device_kv_codec.h"
#include "kvstore/codec/slab_coder.h"

namespace penstock {

// A DeviceKvCodec with its own stream, for slabs of at most `raw_bytes_max` bytes. `device` and
// `calibration` outlive it; null: codecs that need a calibration are not supported.
// RESOURCE_EXHAUSTED names the allocation that failed.
absl::StatusOr<std::unique_ptr<SlabCoder>> MakeDeviceSlabCoder(const cuda::CudaDevice& device,
                                                               size_t raw_bytes_max,
                                                               const KvCalibration* calibration);

}  // namespace penstock
