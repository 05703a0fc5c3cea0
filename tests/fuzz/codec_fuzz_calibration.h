#pragma once

#include <span>
#include <vector>

#include "kvstore/codec/codec_calibration.h"

namespace penstock {

// A calibration of two layers of two heads of 64.
inline const KvCalibration& SmallCalibration() {
  static const KvCalibration calibration = [] {
    const KvRun run{.blocks = 1, .layers = 2, .kv_heads = 2, .block_tokens = 16, .head_dim = 64};
    std::vector<Bf16> values(run.Elements());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = ToBf16(static_cast<float>(i * 7919 % 1000) / 250 - 2);
    }
    const Bf16* const block = values.data();
    return KvCalibration::Measure(run, std::span(&block, 1));
  }();
  return calibration;
}

}  // namespace penstock
