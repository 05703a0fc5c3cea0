#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward/model_runner.h"

namespace penstock {

// This room, model/cuda/mtp, has the parts of the layer for multi-token prediction (MTP) on a GPU:
// which rows of a step it takes with which hidden states, and what is enqueued to make its input of
// them. It may use kernels/, kernels/cuda and model/forward. It does not know uploads or steps.

// The rows that the layer for multi-token prediction takes, and where the hidden state before each
// of them comes from: from the step's own rows, which stay on the device, or from the host. Plain
// data of one step.
class MtpRows {
 public:
  // Adds the rows of `part`, which has fills_mtp. They begin with the step's row `first_row`, and
  // with row `first_kept` of those whose hidden states are on the device, which are all of them.
  // `previous` is the part before, or null. `hidden`: the elements of a hidden state.
  void Add(const SequenceStep& part, const SequenceStep* previous, int32_t first_row,
           int32_t first_kept, int32_t hidden);
  // Adds the rows of a part of StepMtp, all of whose hidden states come from the host.
  void AddGiven(const SequenceStep& part);

  // The step's rows, in order; empty in StepMtp, which takes all of them.
  const std::vector<int32_t>& rows() const { return rows_; }
  // For each of rows(), the kept row with the hidden state before it; any row if it is given.
  const std::vector<uint32_t>& states() const { return states_; }
  // The rows whose hidden states come from the host, by their number among those of the layer, and
  // these hidden states, one behind the other.
  const std::vector<RowRange>& given() const { return given_; }
  const std::vector<float>& before() const { return before_; }
  // The order in which `rows` norms of embeddings, and as many of hidden states behind them, form
  // the rows of the layer's input.
  static std::vector<int32_t> JoinedOrder(int32_t rows);

 private:
  std::vector<int32_t> rows_;
  std::vector<uint32_t> states_;
  std::vector<RowRange> given_;
  std::vector<float> before_;
};

}  // namespace penstock
