#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/forward/rope_angles.h"

namespace penstock {

// The cosines and sines of a rotation by position (RopeAngles). They are computed when a position
// near them is first asked for, and kept: 8 bytes for each pair and position. A step of thousands
// of rows would otherwise compute them for milliseconds, while a GPU waits. One thread.
class AngleTable {
 public:
  struct Angles {
    std::span<const float> cosines, sines;  // [pairs]; stay valid
  };

  AngleTable() = default;  // rotates nothing
  AngleTable(const RopeConfig& rope, int32_t head_dim)
      : frequencies_(RopeFrequencies(rope, head_dim)), attention_factor_(rope.attention_factor) {}

  size_t pairs() const { return frequencies_.size(); }
  const std::vector<float>& frequencies() const { return frequencies_; }
  float attention_factor() const { return attention_factor_; }  // of cosines and sines
  Angles At(int32_t position);

 private:
  static constexpr size_t kPartPositions = 64;

  std::vector<float> frequencies_;
  float attention_factor_ = 1;
  std::vector<std::unique_ptr<float[]>> parts_;  // [kPartPositions][2][pairs]; null: not computed
};

}  // namespace penstock
