#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/quantised_matrix.h"

namespace penstock {

// A weight matrix [outputs][inputs] that stays where it is stored, e.g. in a checkpoint's files,
// until its rows are read. It is for devices that hold weights in memory of their own; the CPU's
// products do not take it. A quantised one has formats and no rows. Copies share the reader, whose
// source must outlive them. Any thread may read it.
class StoredMatrix {
 public:
  // Reads inputs [first, first + count) of an output into `target`.
  using Read = std::function<void(int64_t output, int64_t first, int64_t count, Bf16* target)>;

  StoredMatrix(int64_t outputs, int64_t inputs, Read read)
      : outputs_(outputs), inputs_(inputs), read_(std::make_shared<const Read>(std::move(read))) {}
  // A quantised matrix, of one format or of several that are stacked along the outputs.
  StoredMatrix(int64_t outputs, int64_t inputs, std::vector<QuantisedFormat> formats)
      : outputs_(outputs), inputs_(inputs), formats_(std::move(formats)) {}

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  const std::vector<QuantisedFormat>& formats() const { return formats_; }  // empty: bf16

  // Not for a quantised matrix.
  void ReadRow(int64_t output, int64_t first, int64_t count, Bf16* target) const {
    (*read_)(output, first, count, target);
  }

 private:
  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  std::vector<QuantisedFormat> formats_;
  std::shared_ptr<const Read> read_;
};

}  // namespace penstock
