#pragma once

#include <memory>
#include <string>
#include <utility>

#include "lab/world/machine/rpc_call.h"

namespace penstock::world {

// Both ends of one streaming call, without the classes that gRPC's reactors are bound to.
template <class Request, class Response>
class RpcStream : public RpcCall {
 public:
  using RpcCall::RpcCall;

  // The client's operations. The call is dialled with the first request of a server stream.
  void StartCall() {
    client_half_ = std::make_unique<RpcHalf<Response>>(network_.scheduler(), client);
    client_half_->Bind(weak_from_this(), {.read = [this](bool ok) { OnClientRead(ok); },
                                          .write = [this](bool ok) { OnClientWrite(ok); },
                                          .settle = [this] { SettleClient(); }});
    Dial();
    if (pending_read_ != nullptr) client_half_->Read(std::exchange(pending_read_, nullptr));
    for (auto& write : std::exchange(pending_writes_, {})) ClientWrite(write);
  }
  void ClientRead(Response* into) {
    if (client_half_ == nullptr) {
      pending_read_ = into;
    } else {
      client_half_->Read(into);
    }
  }
  void ClientWrite(const Request& message) {
    if (client_half_ == nullptr) {
      pending_writes_.push_back(message);
      return;
    }
    client_half_->Write();
    SendRequest(message);
  }
  void SendRequest(const Request& message) {
    ArriveAtServer([this, message] {
      if (server_half_ != nullptr) server_half_->Receive(message);
    });
  }
  void ClientWritesDone() {
    ++closing_;
    client_half_->Post([this] {
      --closing_;
      OnClientWritesDone(!client_half_->aborted());
    });
    ArriveAtServer([this] {
      if (server_half_ != nullptr) server_half_->CloseInput(false);
    });
  }
  void AddHold(int holds) { holds_ += holds; }
  void RemoveHold() {
    --holds_;
    client_half_->Settle();
  }

  // The server's.
  void ServerRead(Request* into) { server_half_->Read(into); }
  void ServerWrite(const Response& message) {
    server_half_->Write();
    if (server_half_->aborted()) return;
    ArriveAtClient([this, message] { client_half_->Receive(message); });
  }
  void ServerFinish(const grpc::Status& status) {
    finished_ = true;
    if (!server_half_->aborted()) FinishFromServer(status);
    server_half_->CloseInput(false);
  }

 protected:
  void OpenServer() {
    server_half_ = std::make_unique<RpcHalf<Request>>(network_.scheduler(), server);
    server_half_->Bind(weak_from_this(), {.read = [this](bool ok) { OnServerRead(ok); },
                                          .write = [this](bool ok) { OnServerWrite(ok); },
                                          .settle = [this] { SettleServer(); }});
  }

  virtual void OnClientRead(bool ok) = 0;
  virtual void OnClientWrite(bool) {}
  virtual void OnClientWritesDone(bool) {}
  virtual void OnClientEnd(const grpc::Status& status) = 0;
  virtual void OnServerRead(bool) {}
  virtual void OnServerWrite(bool ok) = 0;
  virtual void OnServerCancel() = 0;
  virtual void OnServerEnd() = 0;

 private:
  void EndClient(bool abort) override { client_half_->CloseInput(abort); }
  void CancelServer() override {
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    server_half_->CloseInput(true);
    server_half_->Post([this] {
      if (!server_done_) OnServerCancel();
    });
  }
  void SettleClient() {
    if (client_done_ || !status_ || holds_ > 0 || closing_ > 0) return;
    if (!client_half_->idle() || !client_half_->drained()) return;
    const grpc::Status status = *status_;
    OnClientDone();
    OnClientEnd(status);
  }
  void SettleServer() {
    if (server_done_ || !finished_ || !server_half_->idle()) return;
    OnServerDone();
    OnServerEnd();
  }

  std::unique_ptr<RpcHalf<Response>> client_half_;  // since StartCall
  std::unique_ptr<RpcHalf<Request>> server_half_;   // since it was accepted
  Response* pending_read_ = nullptr;
  std::vector<Request> pending_writes_;
  int holds_ = 0;
  int closing_ = 0;  // half-closes whose reaction is due
  bool finished_ = false;
  bool cancelled_ = false;
};

}  // namespace penstock::world
