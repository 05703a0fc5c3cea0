#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/forward/transformer_runner.h"

namespace penstock {

// The rows of a step's sequences, in order.
struct TransformerRunner::Batch {
  int64_t rows = 0;
  std::vector<AttentionSequence> sequences;
  // The rows whose output of the last layer is in use: the last row of a sequence with wants_logits
  // or hidden, and all rows of one that KeepsAll. They become the only rows (KeepRows).
  std::vector<AttentionSequence> kept;
  int64_t kept_rows = 0;
  // The same as `sequences` and `kept`, in layers where rows select pages (StepSelection). Empty:
  // no row does.
  std::vector<AttentionSequence> chosen;
  std::vector<AttentionSequence> chosen_kept;
  // The last rows of a step may be blended, in all of these parts: they begin with row
  // `first_blended`. `reused` has the values that the pages had for them.
  size_t blended = 0;
  int64_t first_blended = 0;
  std::vector<float> reused_values;
  View<const float, 2> reused;
  // The last row of a sequence of `kept`, by its number among the rows there.
  struct Output {
    int64_t row = 0;
    bool logits = false;
    std::span<float> hidden;  // SequenceStep::hidden
    int64_t rows = 1;         // that are kept, up to `row`
    std::span<double> sum;    // SequenceStep::hidden_sum
  };
  std::vector<Output> outputs;
  // The rows of a sequence with fills_mtp.
  struct MtpRows {
    int64_t first_row = 0;
    int64_t kept_row = 0;  // the number of the first among those kept
    int64_t rows = 0;
    std::span<const float> before;  // SequenceStep::before
    bool follows = false;           // the row before, of another part, is that of the token before
  };
  std::vector<MtpRows> mtp;

  static bool KeepsAll(const SequenceStep& sequence) {
    return sequence.fills_mtp || !sequence.hidden_sum.empty();
  }
  // Leaves out the rows whose output of the last layer is not in use.
  void KeepLast() {
    sequences = kept;
    chosen = chosen_kept;
  }
};

}  // namespace penstock
