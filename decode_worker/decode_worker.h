#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "proto/config.pb.h"

namespace penstock {

// A decode worker: everything it is made of, in the order of construction; the reverse is its
// shutdown. Constructed and stopped by main.
class DecodeWorker {
 public:
  // Loads the model, opens the wire and serves. Errors name field, file or address.
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Start(const v1::DecodeConfig& config);
  ~DecodeWorker();

  const std::string& endpoint() const;
  // Says that it is draining, lets open sessions end for up to `grace`, then stops.
  void Stop(std::chrono::nanoseconds grace);

 private:
  struct Parts;
  explicit DecodeWorker(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace penstock
