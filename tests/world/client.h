#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lab/world/client.h"
#include "proto/inference.pb.h"
#include "tests/world/oracle.h"
#include "tests/world/plan.h"

namespace penstock::world {

// A client with one request: compares every part of its answer, as it arrives, with the undisturbed
// one.
class SimClient final : public RouterClient {
 public:
  // `models`: the numbers of the models that workers may have; the answer must be of one of them.
  SimClient(const RequestPlan& plan, int number, const std::vector<uint64_t>& models);

  const RequestPlan& plan() const { return plan_; }
  const v1::GenerateRequest& request() const override { return request_; }
  TimePoint deadline() override;
  void OnArrival() { arrived_ = SteadyClock().Now(); }
  void OnRouterDeath() override;

  void Send(v1::GenerateResponse response) override;
  void Finish(const absl::Status& status) override;

  bool finished() const { return finished_; }
  const absl::Status& status() const { return status_; }
  // The number of tokens up to which this prompt is how the other's prompt and answer begin.
  size_t SharedWith(const SimClient& other) const;
  // It accepts lossy KV, and its answer differs from the exact one.
  bool lossy() const { return lossy_; }
  // The first deviation from the undisturbed answer; empty: none. The tokens of a client that
  // accepts lossy KV may be others.
  const std::string& wrong() const { return wrong_; }
  uint32_t migrations() const { return migrations_; }  // counted if it asked for timing
  bool began_once() const { return request_.output().timing() && migrations_ == 0; }
  size_t tokens() const { return tokens_; }
  const v1::Usage& usage() const { return usage_; }      // of an answer that is whole
  Duration first_token() const { return first_token_; }  // since the arrival

 private:
  struct Choice {
    std::vector<uint32_t> tokens;
    std::vector<float> logprobs;
    std::string text;
    bool ended = false;
  };
  void OnChunk(const v1::Chunk& chunk);
  void OnFinal(const v1::Final& final);
  void Check();
  bool Approximates() const { return !plan_.kv_policy.empty(); }
  bool Fits(const std::vector<ExpectedChoice>& answer) const;
  void Blame(std::string what);

  const RequestPlan plan_;
  const int number_;
  v1::GenerateRequest request_;
  std::vector<std::vector<ExpectedChoice>> answers_;      // that what has arrived is a part of
  std::vector<std::vector<ExpectedChoice>> undisturbed_;  // by each model
  std::vector<Choice> choices_;
  std::optional<TimePoint> deadline_;
  bool finished_ = false;
  bool lossy_ = false;
  absl::Status status_;
  std::string wrong_;
  uint32_t migrations_ = 0;
  v1::Usage usage_;
  TimePoint arrived_;
  Duration first_token_{};
  size_t tokens_ = 0;
};

}  // namespace penstock::world
