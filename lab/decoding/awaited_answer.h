#pragma once

#include <future>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "decode_worker/engine/decode_job.h"

namespace penstock {

// The answer of one session of an engine. The engine's thread gives the tokens, another awaits
// them.
class AwaitedAnswer final : public DecodeSink {
 public:
  explicit AwaitedAnswer(const Clock& clock) : clock_(clock), begun_(clock.Now()) {}

  void OnToken(v1::TokenOut token) override { tokens_.push_back(token.token()); }
  void OnFirst(v1::FirstTokens) override {}
  void OnEnd(absl::Status status) override {
    took_ = clock_.Now() - begun_;
    end_.set_value(std::move(status));
  }

  // The tokens behind the first, which prefill gave. At most one call.
  absl::StatusOr<std::vector<uint32_t>> Await() {
    RETURN_IF_ERROR(end_.get_future().get());
    return tokens_;
  }
  // Time per output token since the object was made. After Await.
  double TpotMs() const { return Milliseconds(took_) / static_cast<double>(tokens_.size()); }

 private:
  const Clock& clock_;
  const TimePoint begun_;
  Duration took_{};
  std::vector<uint32_t> tokens_;
  std::promise<absl::Status> end_;
};

}  // namespace penstock
