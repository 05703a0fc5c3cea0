#pragma once

// Included before the generated stubs, of which the world compiles its own copy: every call that a
// stub starts becomes a call of the simulated network. Services need no such change.

#include <grpcpp/channel.h>
#include <grpcpp/support/client_callback.h>

#include "handoff.pb.h"
#include "peer_store.pb.h"
#include "worker.pb.h"

namespace penstock::world {

// The call is not dialled before its reactor's StartCall.
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::PrefillRequest& request,
              grpc::ClientReadReactor<v1::PrefillEvent>* reactor);
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::MoveRequest& request, grpc::ClientReadReactor<v1::PrefillEvent>* reactor);
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::WatchRequest& request, grpc::ClientReadReactor<v1::WorkerState>* reactor);
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::WatchBlocksRequest& request,
              grpc::ClientReadReactor<v1::BlockEvents>* reactor);
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::SendPrefixRequest& request,
              grpc::ClientReadReactor<v1::SendPrefixEvent>* reactor);
void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              grpc::ClientBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* reactor);
void OpenCall(
    grpc::ChannelInterface* channel, grpc::ClientContext* context,
    grpc::ClientBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>* reactor);

template <class Response>
struct ReadCalls {
  template <class Request>
  static void Create(grpc::ChannelInterface* channel, const grpc::internal::RpcMethod&,
                     grpc::ClientContext* context, const Request* request,
                     grpc::ClientReadReactor<Response>* reactor) {
    OpenCall(channel, context, *request, reactor);
  }
};

template <class Request, class Response>
struct BidiCalls {
  static void Create(grpc::ChannelInterface* channel, const grpc::internal::RpcMethod&,
                     grpc::ClientContext* context,
                     grpc::ClientBidiReactor<Request, Response>* reactor) {
    OpenCall(channel, context, reactor);
  }
};

}  // namespace penstock::world

namespace grpc::internal {

template <>
class ClientCallbackReaderFactory<penstock::v1::PrefillEvent>
    : public penstock::world::ReadCalls<penstock::v1::PrefillEvent> {};
template <>
class ClientCallbackReaderFactory<penstock::v1::WorkerState>
    : public penstock::world::ReadCalls<penstock::v1::WorkerState> {};
template <>
class ClientCallbackReaderFactory<penstock::v1::BlockEvents>
    : public penstock::world::ReadCalls<penstock::v1::BlockEvents> {};
template <>
class ClientCallbackReaderFactory<penstock::v1::SendPrefixEvent>
    : public penstock::world::ReadCalls<penstock::v1::SendPrefixEvent> {};
template <>
class ClientCallbackReaderWriterFactory<penstock::v1::DecodeCommands, penstock::v1::DecodeEvents>
    : public penstock::world::BidiCalls<penstock::v1::DecodeCommands, penstock::v1::DecodeEvents> {
};
template <>
class ClientCallbackReaderWriterFactory<penstock::v1::HandoffSenderMessage,
                                        penstock::v1::HandoffReceiverMessage>
    : public penstock::world::BidiCalls<penstock::v1::HandoffSenderMessage,
                                        penstock::v1::HandoffReceiverMessage> {};

}  // namespace grpc::internal
