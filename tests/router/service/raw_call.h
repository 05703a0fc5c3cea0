#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

namespace penstock {

struct RawAnswer {
  grpc::Status status;
  std::string bytes;  // of the first answer
};

// Calls a method whose .proto is not at hand (health, reflection) with an encoded request, and
// takes the first answer.
RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& request);

}  // namespace penstock
