#include "lab/simulate/sim_decode.h"

#include <algorithm>
#include <cmath>

namespace penstock {

void SimDecode::Add(uint32_t id, double context_tokens, double steps, double now_s) {
  Advance(now_s);
  const Waiting sequence{id, context_tokens, steps};
  const bool fits = running_.empty() || context_ + context_tokens + steps <= context_max_;
  if (waiting_.empty() && fits) {
    Start(sequence);
  } else {
    waiting_.push_back(sequence);
  }
}

void SimDecode::Start(const Waiting& sequence) {
  running_.push({steps_ + sequence.steps, sequence.context + sequence.steps, sequence.id});
  context_ += sequence.context;
}

// s steps take (base + context) * s + growth * s^2 / 2.
std::optional<double> SimDecode::NextEnd() const {
  if (running_.empty()) return std::nullopt;
  const double sequences = static_cast<double>(running_.size());
  const double s = std::max(0.0, running_.top().end_step - steps_);
  const double ms =
      step_.Ms(sequences, context_) * s + step_.ms_per_context_token * sequences * s * s / 2;
  return now_s_ + ms / 1000;
}

void SimDecode::Advance(double now_s) {
  const double ms = (now_s - now_s_) * 1000;
  now_s_ = now_s;
  if (running_.empty() || ms <= 0) return;
  const double sequences = static_cast<double>(running_.size());
  const double linear = step_.Ms(sequences, context_);
  const double square = step_.ms_per_context_token * sequences / 2;
  // The positive root of square * s^2 + linear * s - ms, in the form that is stable near 0.
  const double s = 2 * ms / (linear + std::sqrt(linear * linear + 4 * square * ms));
  steps_ += s;
  context_ += s * sequences;
}

uint32_t SimDecode::Finish(double now_s) {
  Advance(now_s);
  const Sequence ended = running_.top();
  running_.pop();
  context_ = running_.empty() ? 0 : std::max(0.0, context_ - ended.context);
  while (!waiting_.empty()) {
    const Waiting& next = waiting_.front();
    if (!running_.empty() && context_ + next.context + next.steps > context_max_) break;
    Start(next);
    waiting_.pop_front();
  }
  return ended.id;
}

}  // namespace penstock
