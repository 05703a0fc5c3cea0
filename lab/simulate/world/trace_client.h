#pragma once

#include <functional>
#include <optional>

#include "lab/simulate/sim_trace.h"
#include "lab/world/client.h"

namespace penstock {

// The client of one request of a trace: it measures.
class TraceClient final : public world::RouterClient {
 public:
  // `number` tells its own tokens apart from those of other requests. `on_end`: at its end.
  TraceClient(const SimRequest& request, uint32_t number, uint32_t answer_tokens,
              uint32_t block_tokens, std::function<void()> on_end);

  const v1::GenerateRequest& request() const override { return request_; }
  void OnRouterDeath() override;
  void OnStarting() override;
  void OnStarted() override { starting_ = nullptr; }
  void Send(v1::GenerateResponse response) override;
  void Finish(const absl::Status& status) override;

  // Between OnStarting and OnStarted: the placement that is made meanwhile is its own.
  static TraceClient* starting() { return starting_; }
  void SetPredicted(double ttft_ms) { predicted_ms_ = ttft_ms; }

  const absl::Status& status() const { return status_; }
  double ttft_ms() const { return Milliseconds(first_ - arrived_); }
  // The time of a token behind the first; nullopt: there is none.
  std::optional<double> tpot_ms() const;
  std::optional<double> predicted_ms() const { return predicted_ms_; }
  uint32_t cached_tokens() const { return cached_tokens_; }

 private:
  static TraceClient* starting_;

  v1::GenerateRequest request_;
  const std::function<void()> on_end_;
  TimePoint arrived_{};
  TimePoint first_{};  // token
  TimePoint last_{};
  uint32_t tokens_ = 0;
  uint32_t cached_tokens_ = 0;
  std::optional<double> predicted_ms_;
  absl::Status status_;
};

}  // namespace penstock
