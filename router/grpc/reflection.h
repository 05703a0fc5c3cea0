#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/standing_stream.h"

namespace penstock {

// gRPC's server reflection: what services there are, and the .proto files behind them, as they were
// compiled into this process.
// https://github.com/grpc/grpc/blob/master/doc/server-reflection.md

// NOT_FOUND and UNIMPLEMENTED (extensions, of which there are none) are answers, too.
grpc_standard::v1::ServerReflectionResponse Reflect(
    const grpc_standard::v1::ServerReflectionRequest& request,
    const std::vector<std::string>& services);

// Answers `exchange` with a stream of them; the questions go to the sink.
std::shared_ptr<BodySink> OpenReflection(std::vector<std::string> services,
                                         StandingStreams& streams,
                                         const std::shared_ptr<Exchange>& exchange);

}  // namespace penstock
