#pragma once

#include <memory>
#include <utility>

#include "tests/world/machine/rpc_stream.h"

namespace penstock::world {

// Calls whose ends are bound to the reactors of the code under test, by the classes that gRPC has
// for mocking. `Open` calls the service's method and returns the server's reactor, or nullptr.

template <class Request, class Response>
class BidiCall final : public RpcStream<Request, Response> {
 public:
  using ServerReactor = grpc::ServerBidiReactor<Request, Response>;
  using Open = std::function<ServerReactor*(RpcHost&, grpc::CallbackServerContext*)>;
  using RpcStream<Request, Response>::RpcStream;

  void Bind(grpc::ClientBidiReactor<Request, Response>* reactor, Open open) {
    open_ = std::move(open);
    client_reactor_ = reactor;
    client_end_.Bind(reactor);
  }

 private:
  class ClientEnd final : public grpc::ClientCallbackReaderWriter<Request, Response> {
   public:
    explicit ClientEnd(BidiCall& call) : call_(call) {}
    void Bind(grpc::ClientBidiReactor<Request, Response>* reactor) { this->BindReactor(reactor); }
    void StartCall() override { call_.StartCall(); }
    void Write(const Request* message, grpc::WriteOptions) override { call_.ClientWrite(*message); }
    void WritesDone() override { call_.ClientWritesDone(); }
    void Read(Response* into) override { call_.ClientRead(into); }
    void AddHold(int holds) override { call_.AddHold(holds); }
    void RemoveHold() override { call_.RemoveHold(); }

   private:
    BidiCall& call_;
  };
  class ServerEnd final : public grpc::ServerCallbackReaderWriter<Request, Response> {
   public:
    explicit ServerEnd(BidiCall& call) : call_(call) {}
    void Bind(ServerReactor* reactor) { this->BindReactor(reactor); }
    void Finish(grpc::Status status) override { call_.ServerFinish(status); }
    void SendInitialMetadata() override {}
    void Read(Request* into) override { call_.ServerRead(into); }
    void Write(const Response* message, grpc::WriteOptions) override {
      call_.ServerWrite(*message);
    }
    void WriteAndFinish(const Response* message, grpc::WriteOptions, grpc::Status status) override {
      call_.ServerWrite(*message);
      call_.ServerFinish(status);
    }

   private:
    grpc::internal::ServerReactor* reactor() override { return call_.server_reactor_; }
    void CallOnDone() override {}
    BidiCall& call_;
  };

  bool Accept() override {
    RpcHost* const host = FindHost(this->target_);
    if (host == nullptr) return false;
    this->OpenServer();
    server_reactor_ = open_(*host, &this->server_context_);
    if (server_reactor_ == nullptr) return false;
    server_end_.Bind(server_reactor_);
    return true;
  }
  void OnClientRead(bool ok) override { client_reactor_->OnReadDone(ok); }
  void OnClientWrite(bool ok) override { client_reactor_->OnWriteDone(ok); }
  void OnClientWritesDone(bool ok) override { client_reactor_->OnWritesDoneDone(ok); }
  void OnClientEnd(const grpc::Status& status) override { client_reactor_->OnDone(status); }
  void OnServerRead(bool ok) override { server_reactor_->OnReadDone(ok); }
  void OnServerWrite(bool ok) override { server_reactor_->OnWriteDone(ok); }
  void OnServerCancel() override { server_reactor_->OnCancel(); }
  void OnServerEnd() override { server_reactor_->OnDone(); }

  Open open_;
  ClientEnd client_end_{*this};
  ServerEnd server_end_{*this};
  grpc::ClientBidiReactor<Request, Response>* client_reactor_ = nullptr;
  ServerReactor* server_reactor_ = nullptr;
};

template <class Request, class Response>
class ServerStreamCall final : public RpcStream<Request, Response> {
 public:
  using ServerReactor = grpc::ServerWriteReactor<Response>;
  using Open =
      std::function<ServerReactor*(RpcHost&, grpc::CallbackServerContext*, const Request*)>;
  using RpcStream<Request, Response>::RpcStream;

  void Bind(grpc::ClientReadReactor<Response>* reactor, const Request& request, Open open) {
    open_ = std::move(open);
    request_ = request;
    client_reactor_ = reactor;
    client_end_.Bind(reactor);
  }

 private:
  class ClientEnd final : public grpc::ClientCallbackReader<Response> {
   public:
    explicit ClientEnd(ServerStreamCall& call) : call_(call) {}
    void Bind(grpc::ClientReadReactor<Response>* reactor) { this->BindReactor(reactor); }
    void StartCall() override { call_.StartCall(); }
    void Read(Response* into) override { call_.ClientRead(into); }
    void AddHold(int holds) override { call_.AddHold(holds); }
    void RemoveHold() override { call_.RemoveHold(); }

   private:
    ServerStreamCall& call_;
  };
  class ServerEnd final : public grpc::ServerCallbackWriter<Response> {
   public:
    explicit ServerEnd(ServerStreamCall& call) : call_(call) {}
    void Bind(ServerReactor* reactor) { this->BindReactor(reactor); }
    void Finish(grpc::Status status) override { call_.ServerFinish(status); }
    void SendInitialMetadata() override {}
    void Write(const Response* message, grpc::WriteOptions) override {
      call_.ServerWrite(*message);
    }
    void WriteAndFinish(const Response* message, grpc::WriteOptions, grpc::Status status) override {
      call_.ServerWrite(*message);
      call_.ServerFinish(status);
    }

   private:
    grpc::internal::ServerReactor* reactor() override { return call_.server_reactor_; }
    void CallOnDone() override {}
    ServerStreamCall& call_;
  };

  bool Accept() override {
    RpcHost* const host = FindHost(this->target_);
    if (host == nullptr) return false;
    this->OpenServer();
    server_reactor_ = open_(*host, &this->server_context_, &request_);
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
  Request request_;
  ClientEnd client_end_{*this};
  ServerEnd server_end_{*this};
  grpc::ClientReadReactor<Response>* client_reactor_ = nullptr;
  ServerReactor* server_reactor_ = nullptr;
};

}  // namespace penstock::world
