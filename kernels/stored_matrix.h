#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/bf16.h"

namespace penstock {

// A weight matrix [outputs][inputs] that stays where it is stored, e.g. in a checkpoint's files,
// until its rows are read. It is for devices that hold weights in memory of their own; the CPU's
// products do not take it. Copies share the reader, whose source must outlive them. Any thread may
// read it.
class StoredMatrix {
 public:
  // Reads inputs [first, first + count) of an output into `target`.
  using Read = std::function<void(int64_t output, int64_t first, int64_t count, Bf16* target)>;

  StoredMatrix(int64_t outputs, int64_t inputs, Read read)
      : outputs_(outputs), inputs_(inputs), read_(std::make_shared<const Read>(std::move(read))) {}

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }

  void ReadRow(int64_t output, int64_t first, int64_t count, Bf16* target) const {
    (*read_)(output, first, count, target);
  }

 private:
  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  std::shared_ptr<const Read> read_;
};

}  // namespace penstock
