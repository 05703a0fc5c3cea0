#pragma once

#include <memory>

#include "base/clock.h"
#include "router/inference_core.h"
#include "router/key_ring.h"

namespace grpc {
class Service;
}

namespace penstock {

struct InferenceServiceArgs {
  InferenceCore& core;      // outlives the service
  KeyRing* keys = nullptr;  // likewise; null: whoever reaches the port may ask
  // A client that reads nothing for so long while something waits for it is cut off.
  Duration client_stall = std::chrono::seconds(30);
};

// penstock.v1.Inference. Takes requests as bytes and checks them itself, since gRPC answers one
// that protobuf cannot parse with UNIMPLEMENTED.
std::unique_ptr<grpc::Service> MakeInferenceService(const InferenceServiceArgs& args);

}  // namespace penstock
