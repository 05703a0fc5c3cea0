#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "model/weights/formats/quantised_tensor.h"

namespace penstock {

// Describes the quantised weights of a checkpoint without reading all of them. Layers have like
// formats, so one weight of each kind is read; a kind is the name of a module without numbers.
// Weights in blocks need not be read at all. One thread uses it.
class WeightKinds {
 public:
  WeightKinds(const QuantisationConfig& config, const TensorSource& source)
      : config_(config), source_(source) {}

  // As ReadQuantised, without codes, scales, zeros and offsets.
  absl::StatusOr<QuantisedTensor> Describe(const std::string& module, int64_t rows, int64_t inputs);

 private:
  const QuantisationConfig& config_;
  const TensorSource& source_;
  std::map<std::string, QuantisedTensor> known_;  // by kind
};

}  // namespace penstock
