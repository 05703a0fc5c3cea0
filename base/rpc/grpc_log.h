#pragma once

namespace penstock {

// Writes the messages of the gRPC library as events `grpc_message_logged` instead of to standard
// error, where a reader that stalls would block gRPC's threads. Call it after StartLogging and
// before the first use of gRPC.
void RedirectGrpcLog();

}  // namespace penstock
