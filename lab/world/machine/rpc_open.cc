#include "lab/world/machine/grpc_stubs.h"
#include "lab/world/machine/rpc_bound.h"
#include "lab/world/machine/rpc_channel.h"
#include "proto/handoff.grpc.pb.h"
#include "proto/peer_store.grpc.pb.h"
#include "proto/worker.grpc.pb.h"

namespace penstock::world {
namespace {

template <class Service>
Service* Find(const RpcHost& host) {
  for (grpc::Service* const service : host.services) {
    if (auto* const found = dynamic_cast<Service*>(service)) return found;
  }
  return nullptr;
}

// `Service` and `method` name the server's side.
template <class Service, class Request, class Response, class Method>
void OpenStream(grpc::ChannelInterface* channel, grpc::ClientContext* context,
                const Request& request, grpc::ClientReadReactor<Response>* reactor, Method method,
                Duration delay = {}) {
  const auto& to = static_cast<RpcChannel&>(*channel);
  auto call = std::make_shared<ServerStreamCall<Request, Response>>(
      Network::current(), to.owner, to.target, Service::service_full_name(), context);
  call->SetDelayToClient(delay);
  // The call keeps this function, and so the request, as long as the service may read it.
  call->Bind(
      reactor,
      [method, request](const RpcHost& host,
                        grpc::CallbackServerContext* at) -> grpc::ServerWriteReactor<Response>* {
        auto* const service = Find<typename Service::CallbackService>(host);
        return service == nullptr ? nullptr : (service->*method)(at, &request);
      });
  call->HoldUntilOver();
}

template <class Service, class Request, class Response, class Method>
void OpenBidi(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              grpc::ClientBidiReactor<Request, Response>* reactor, Method method) {
  const auto& to = static_cast<RpcChannel&>(*channel);
  auto call = std::make_shared<BidiCall<Request, Response>>(Network::current(), to.owner, to.target,
                                                            Service::service_full_name(), context);
  call->Bind(
      reactor,
      [method](const RpcHost& host,
               grpc::CallbackServerContext* at) -> grpc::ServerBidiReactor<Request, Response>* {
        auto* const service = Find<typename Service::CallbackService>(host);
        return service == nullptr ? nullptr : (service->*method)(at);
      });
  call->HoldUntilOver();
}

}  // namespace

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::PrefillRequest& request,
              grpc::ClientReadReactor<v1::PrefillEvent>* reactor) {
  using Service = v1::PrefillWorker::CallbackService;
  grpc::ServerWriteReactor<v1::PrefillEvent>* (Service::*method)(
      grpc::CallbackServerContext*, const v1::PrefillRequest*) = &Service::Prefill;
  OpenStream<v1::PrefillWorker>(channel, context, request, reactor, method);
}

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::MoveRequest& request, grpc::ClientReadReactor<v1::PrefillEvent>* reactor) {
  using Service = v1::DecodeWorker::CallbackService;
  grpc::ServerWriteReactor<v1::PrefillEvent>* (Service::*method)(
      grpc::CallbackServerContext*, const v1::MoveRequest*) = &Service::Move;
  OpenStream<v1::DecodeWorker>(channel, context, request, reactor, method);
}

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::WatchRequest& request, grpc::ClientReadReactor<v1::WorkerState>* reactor) {
  using Service = v1::WorkerStatus::CallbackService;
  grpc::ServerWriteReactor<v1::WorkerState>* (Service::*method)(
      grpc::CallbackServerContext*, const v1::WatchRequest*) = &Service::Watch;
  OpenStream<v1::WorkerStatus>(channel, context, request, reactor, method);
}

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::WatchBlocksRequest& request,
              grpc::ClientReadReactor<v1::BlockEvents>* reactor) {
  using Service = v1::WorkerStatus::CallbackService;
  grpc::ServerWriteReactor<v1::BlockEvents>* (Service::*method)(
      grpc::CallbackServerContext*, const v1::WatchBlocksRequest*) = &Service::WatchBlocks;
  OpenStream<v1::WorkerStatus>(channel, context, request, reactor, method,
                               Network::current().times().cache_news_delay);
}

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              const v1::SendPrefixRequest& request,
              grpc::ClientReadReactor<v1::SendPrefixEvent>* reactor) {
  using Service = v1::PeerStore::CallbackService;
  grpc::ServerWriteReactor<v1::SendPrefixEvent>* (Service::*method)(
      grpc::CallbackServerContext*, const v1::SendPrefixRequest*) = &Service::SendPrefix;
  OpenStream<v1::PeerStore>(channel, context, request, reactor, method);
}

void OpenCall(grpc::ChannelInterface* channel, grpc::ClientContext* context,
              grpc::ClientBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* reactor) {
  using Service = v1::DecodeWorker::CallbackService;
  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* (Service::*method)(
      grpc::CallbackServerContext*) = &Service::Sessions;
  OpenBidi<v1::DecodeWorker>(channel, context, reactor, method);
}

void OpenCall(
    grpc::ChannelInterface* channel, grpc::ClientContext* context,
    grpc::ClientBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>* reactor) {
  using Service = v1::HandoffTarget::CallbackService;
  grpc::ServerBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>* (Service::*method)(
      grpc::CallbackServerContext*) = &Service::Handoff;
  OpenBidi<v1::HandoffTarget>(channel, context, reactor, method);
}

}  // namespace penstock::world
