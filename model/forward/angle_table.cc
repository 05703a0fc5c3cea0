#include "model/forward/angle_table.h"

namespace penstock {

AngleTable::Angles AngleTable::At(int32_t position) {
  const auto at = static_cast<size_t>(position);
  const size_t part = at / kPartPositions;
  if (part >= parts_.size()) parts_.resize(part + 1);
  if (parts_[part] == nullptr) {
    parts_[part] = std::make_unique<float[]>(kPartPositions * 2 * pairs());
    for (size_t i = 0; i < kPartPositions; ++i) {
      float* row = parts_[part].get() + i * 2 * pairs();
      RopeAngles(frequencies_, attention_factor_, static_cast<int32_t>(part * kPartPositions + i),
                 row, row + pairs());
    }
  }
  const float* row = parts_[part].get() + at % kPartPositions * 2 * pairs();
  return {.cosines = {row, pairs()}, .sines = {row + pairs(), pairs()}};
}

}  // namespace penstock
