#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "decode_worker/speculation/guess_record.h"

namespace penstock {

// One sequence in the layer for multi-token prediction: its last tokens, whose keys and values the
// layer does not have yet, and the hidden states before them. One thread.
class MtpContext {
 public:
  // `token`: the last one. `before`: the model's hidden state before it; zeros if it is empty.
  // `rows`: the most rows of the sequence in a step of the model.
  MtpContext(uint32_t token, std::span<const float> before, size_t hidden_size, size_t rows)
      : hidden_size_(hidden_size),
        ready_(!before.empty()),
        states_(rows * hidden_size),
        own_(hidden_size),
        tokens_{token} {
    std::ranges::copy(before, states_.begin());
  }

  // False if the hidden state before the last token is not known: a guess would be wrong.
  bool ready() const { return ready_; }
  // Receives the hidden state of the `row`-th row of the model's next step. Only when no token is
  // pending.
  std::span<float> Row(size_t row) {
    PENSTOCK_CHECK(tokens_.empty());
    return std::span(states_).subspan(row * hidden_size_, hidden_size_);
  }
  // Records the sequence's next token: the first is drawn behind the step's first row, and so on.
  void Observe(uint32_t token) {
    tokens_.push_back(token);
    record_.Observe(token);
  }

  // For MtpDrafter.
  std::span<const uint32_t> pending() const { return tokens_; }
  std::span<const float> before() const {  // [pending][hidden]
    return std::span(states_).first(tokens_.size() * hidden_size_);
  }
  void TakePending() {
    tokens_.clear();
    ready_ = true;
  }
  std::span<float> own() { return own_; }  // the layer's hidden state behind its last row
  GuessRecord& record() { return record_; }
  const GuessRecord& record() const { return record_; }

 private:
  const size_t hidden_size_;
  bool ready_;
  std::vector<float> states_;
  std::vector<float> own_;
  std::vector<uint32_t> tokens_;
  GuessRecord record_;
};

}  // namespace penstock
