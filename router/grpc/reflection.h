#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/standing_stream.h"

namespace penstock {

// gRPC server reflection: the services, and the .proto files that they were compiled from.
// https://github.com/grpc/grpc/blob/master/doc/server-reflection.md

// The response carries errors itself: NOT_FOUND, and UNIMPLEMENTED for extensions. Pure.
grpc_standard::v1::ServerReflectionResponse Reflect(
    const grpc_standard::v1::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

// Answers `exchange` with a stream of responses; the returned sink receives the requests.
std::shared_ptr<BodySink> OpenReflection(std::vector<std::string> services,
                                         StandingStreams& streams,
                                         const std::shared_ptr<Exchange>& exchange);

}  // namespace penstock
