#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_body.h"

namespace penstock {

// A whole worker: its body, and both roles over it, one of which it has. Constructed and stopped by
// main.
class Worker {
 public:
  // Loads the model, opens the wire and serves. Errors name field, file or address.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(v1::WorkerState::Role first,
                                                       const v1::WorkerConfig& config);

  const std::string& endpoint() const { return body_->endpoint(); }
  // Says that it is draining, lets what is open end for up to `grace`, then stops.
  void Stop(Duration grace) { body_->Stop(grace); }

 private:
  explicit Worker(std::unique_ptr<WorkerBody> body) : body_(std::move(body)) {}

  std::unique_ptr<WorkerBody> body_;
};

}  // namespace penstock
