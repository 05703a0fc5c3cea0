#pragma once

#include <memory>
#include <utility>

#include "lab/world/machine/rpc_stream.h"

namespace penstock::world {

// Calls whose ends are bound to the reactors of the code under test, by the classes that gRPC has
// for mocking. Each end hands its operations to the RpcStream.

// The client's operations of every stream. `GrpcEnd` is gRPC's class for this end.
template <class Request, class Response, class GrpcEnd>
class ClientEnd : public GrpcEnd {
 public:
  explicit ClientEnd(RpcStream<Request, Response>& stream) : stream_(stream) {}
  template <class Reactor>
  void Bind(Reactor* reactor) {
    this->BindReactor(reactor);
  }
  void StartCall() override { stream_.StartCall(); }
  void Read(Response* into) override { stream_.ClientRead(into); }
  void AddHold(int holds) override { stream_.AddHold(holds); }
  void RemoveHold() override { stream_.RemoveHold(); }

 protected:
  RpcStream<Request, Response>& stream_;
};

// The server's.
template <class Request, class Response, class GrpcEnd>
class ServerEnd : public GrpcEnd {
 public:
  explicit ServerEnd(RpcStream<Request, Response>& stream) : stream_(stream) {}
  template <class Reactor>
  void Bind(Reactor* reactor) {
    reactor_ = reactor;
    this->BindReactor(reactor);
  }
  void Finish(grpc::Status status) override { stream_.ServerFinish(status); }
  void SendInitialMetadata() override {}
  void Write(const Response* message, grpc::WriteOptions) override {
    stream_.ServerWrite(*message);
  }
  void WriteAndFinish(const Response* message, grpc::WriteOptions, grpc::Status status) override {
    stream_.ServerWrite(*message);
    stream_.ServerFinish(status);
  }

 protected:
  RpcStream<Request, Response>& stream_;

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}

  grpc::internal::ServerReactor* reactor_ = nullptr;
};

// A stream of responses to one request.
template <class Request, class Response>
struct ServerStream {
  using ClientReactor = grpc::ClientReadReactor<Response>;
  using ServerReactor = grpc::ServerWriteReactor<Response>;
  using Client = ClientEnd<Request, Response, grpc::ClientCallbackReader<Response>>;
  using Server = ServerEnd<Request, Response, grpc::ServerCallbackWriter<Response>>;
};

// Streams in both directions: the client can write, and the server can read.
template <class Request, class Response>
struct BidiStream {
  using ClientReactor = grpc::ClientBidiReactor<Request, Response>;
  using ServerReactor = grpc::ServerBidiReactor<Request, Response>;

  using ClientBase =
      ClientEnd<Request, Response, grpc::ClientCallbackReaderWriter<Request, Response>>;
  class Client final : public ClientBase {
   public:
    using ClientBase::ClientBase;
    void Write(const Request* message, grpc::WriteOptions) override {
      this->stream_.ClientWrite(*message);
    }
    void WritesDone() override { this->stream_.ClientWritesDone(); }
  };

  using ServerBase =
      ServerEnd<Request, Response, grpc::ServerCallbackReaderWriter<Request, Response>>;
  class Server final : public ServerBase {
   public:
    using ServerBase::ServerBase;
    void Read(Request* into) override { this->stream_.ServerRead(into); }
  };
};

// The call of either shape, which is ServerStream or BidiStream.
template <class Request, class Response, class Shape>
class BoundCall : public RpcStream<Request, Response> {
 public:
  using ClientReactor = typename Shape::ClientReactor;
  using ServerReactor = typename Shape::ServerReactor;
  // Calls the service's method and returns the server's reactor, or nullptr.
  using Open = std::function<ServerReactor*(const RpcHost&, grpc::CallbackServerContext*)>;
  using RpcStream<Request, Response>::RpcStream;

  void Bind(ClientReactor* reactor, Open open) {
    open_ = std::move(open);
    client_reactor_ = reactor;
    client_end_.Bind(reactor);
  }

 protected:
  ClientReactor* client_reactor_ = nullptr;
  ServerReactor* server_reactor_ = nullptr;

 private:
  bool Accept() override {
    const RpcHost* const host = FindHost(this->target_);
    if (host == nullptr) return false;
    this->OpenServer();
    server_reactor_ = open_(*host, &this->server_context_);
    if (server_reactor_ == nullptr) return false;
    server_end_.Bind(server_reactor_);
    return true;
  }
  void OnClientRead(bool ok) override { client_reactor_->OnReadDone(ok); }
  void OnClientEnd(const grpc::Status& status) override { client_reactor_->OnDone(status); }
  void OnServerWrite(bool ok) override { server_reactor_->OnWriteDone(ok); }
  void OnServerCancel() override { server_reactor_->OnCancel(); }
  void OnServerEnd() override { server_reactor_->OnDone(); }

  Open open_;
  typename Shape::Client client_end_{*this};
  typename Shape::Server server_end_{*this};
};

template <class Request, class Response>
using ServerStreamCall = BoundCall<Request, Response, ServerStream<Request, Response>>;

template <class Request, class Response>
class BidiCall final : public BoundCall<Request, Response, BidiStream<Request, Response>> {
 public:
  using BoundCall<Request, Response, BidiStream<Request, Response>>::BoundCall;

 private:
  void OnClientWrite(bool ok) override { this->client_reactor_->OnWriteDone(ok); }
  void OnClientWritesDone(bool ok) override { this->client_reactor_->OnWritesDoneDone(ok); }
  void OnServerRead(bool ok) override { this->server_reactor_->OnReadDone(ok); }
};

}  // namespace penstock::world
