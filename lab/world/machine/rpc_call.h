#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lab/world/machine/network.h"
#include "lab/world/machine/rpc_half.h"

namespace penstock::world {

// The part of a simulated gRPC call that does not depend on its messages.
class RpcCall : public Connection, public std::enable_shared_from_this<RpcCall> {
 public:
  RpcCall(Network& network, Process* from, std::string target, std::string method,
          grpc::ClientContext* context);
  ~RpcCall() override;

  // The client has called TryCancel, or its deadline has passed.
  void CancelByClient(grpc::Status why);
  void Break(const Process* dead) override;
  bool over() const override { return client_done_ && server_done_; }
  void Shut() override;
  bool shut() const override { return server_done_; }
  // Delays every message to the client, in addition to the network's delay. Call it before Dial().
  void SetDelayToClient(Duration delay) { delay_to_client_ = delay; }
  // The call owns itself until both ends are done.
  void HoldUntilOver() { self_ = shared_from_this(); }

 protected:
  void Dial();
  // The server's part, in its process: false when it does not serve the method.
  virtual bool Accept() = 0;
  virtual void EndClient(bool abort) = 0;  // `status_` is set
  virtual void CancelServer() = 0;
  void ArriveAtServer(std::function<void()> deliver);
  void ArriveAtClient(std::function<void()> deliver);
  void FinishFromServer(const grpc::Status& status);
  void SetClientStatus(const grpc::Status& status, bool abort);
  void OnClientDone();
  void OnServerDone();

  Network& network_;
  const std::string target_;
  const std::string method_;
  grpc::ClientContext* context_;  // until the client's OnDone
  grpc::CallbackServerContext server_context_;
  std::optional<grpc::Status> status_;  // as the client gets it
  bool accepted_ = false;
  bool client_done_ = false;
  bool server_done_ = false;

 private:
  bool BreaksNow();
  void RefuseUnlessAccepted();
  void LetGoIfOver();
  void SetDeadlines();

  std::shared_ptr<Link> to_server_;
  std::shared_ptr<Link> to_client_;
  std::shared_ptr<RpcCall> self_;
  Duration delay_to_client_{};
};

// The call of a client's context; nullptr: none is open.
std::shared_ptr<RpcCall> FindCall(const grpc::ClientContext* context);

// A process's server at an endpoint, with its services by the first part of a method's path.
struct RpcHost {
  Process* process = nullptr;
  std::vector<grpc::Service*> services;
};
RpcHost* FindHost(const std::string& endpoint);
void Listen(const std::string& endpoint, RpcHost host);
void StopListening(const std::string& endpoint);

}  // namespace penstock::world
