#pragma once

#include <grpcpp/grpcpp.h>

#include <vector>

#include "proto/worker.grpc.pb.h"

namespace penstock {

struct DecodedSession {
  std::vector<v1::TokenOut> tokens;
  grpc::Status status;  // the session's, or why its stream broke
};

// Plays a router with one session: opens it and takes what the decode worker says until it ends.
inline DecodedSession RunDecodeSession(v1::DecodeWorker::Stub& stub, grpc::ClientContext* context,
                                       const v1::DecodeRequest& request) {
  const auto stream = stub.Sessions(context);
  v1::DecodeCommands commands;
  commands.add_commands()->set_number(1);
  *commands.mutable_commands(0)->mutable_open() = request;
  stream->Write(commands);
  DecodedSession decoded;
  v1::DecodeEvents events;
  while (stream->Read(&events)) {
    for (const v1::SessionToken& said : events.tokens()) decoded.tokens.push_back(said.token());
    if (events.ends().empty()) continue;
    const v1::SessionEnd& end = events.ends(0);
    decoded.status = grpc::Status(static_cast<grpc::StatusCode>(end.code()), end.message());
    stream->WritesDone();
    while (stream->Read(&events)) {
    }
    stream->Finish();
    return decoded;
  }
  decoded.status = stream->Finish();
  if (decoded.status.ok()) decoded.status = grpc::Status(grpc::StatusCode::UNKNOWN, "no end");
  return decoded;
}

}  // namespace penstock
