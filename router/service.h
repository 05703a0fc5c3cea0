#pragma once

#include <memory>

#include "router/fleet.h"
#include "router/open_requests.h"
#include "router/served_model.h"
#include "router/session.h"

namespace grpc {
class Service;
}

namespace penstock {

struct InferenceServiceArgs {
  const ServedModel& model;  // all of these outlive the service
  Fleet& fleet;
  OpenRequests& open;
  const Clock& clock;
  SessionLimits limits;
  // A client that reads nothing for so long while something waits for it is cut off.
  Duration client_stall = std::chrono::seconds(30);
};

// penstock.v1.Inference. Takes requests as bytes and checks them itself, since gRPC answers one
// that protobuf cannot parse with UNIMPLEMENTED.
std::unique_ptr<grpc::Service> MakeInferenceService(const InferenceServiceArgs& args);

}  // namespace penstock
