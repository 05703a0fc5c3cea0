#include "lab/world/machine/rpc_call.h"

#include <map>

#include "base/check.h"

namespace grpc::testing {

// gRPC declares this class as a friend of contexts, for tests.
class InteropServerContextInspector {
 public:
  static void SetDeadline(CallbackServerContext& context, gpr_timespec deadline) {
    context.deadline_ = deadline;
  }
};

}  // namespace grpc::testing

namespace penstock::world {
namespace {

std::map<const grpc::ClientContext*, std::weak_ptr<RpcCall>> g_calls;
std::map<std::string, RpcHost> g_hosts;

}  // namespace

std::shared_ptr<RpcCall> FindCall(const grpc::ClientContext* context) {
  const auto found = g_calls.find(context);
  return found == g_calls.end() ? nullptr : found->second.lock();
}

RpcHost* FindHost(const std::string& endpoint) {
  const auto found = g_hosts.find(endpoint);
  if (found == g_hosts.end() || !found->second.process->alive) return nullptr;
  return &found->second;
}
void Listen(const std::string& endpoint, RpcHost host) { g_hosts[endpoint] = std::move(host); }
void StopListening(const std::string& endpoint) { g_hosts.erase(endpoint); }

RpcCall::RpcCall(Network& network, Process* from, std::string target, std::string method,
                 grpc::ClientContext* context)
    : network_(network), target_(std::move(target)), method_(std::move(method)), context_(context) {
  client = from;
}

RpcCall::~RpcCall() {
  if (context_ != nullptr) g_calls.erase(context_);
}

void RpcCall::Dial() {
  g_calls[context_] = weak_from_this();
  RpcHost* const host = FindHost(target_);
  if (host == nullptr) {
    OnServerDone();
    network_.scheduler().After(network_.Delay(client, client), client, [self = shared_from_this()] {
      self->SetClientStatus({grpc::StatusCode::UNAVAILABLE, "connection refused"}, true);
    });
    return;
  }
  server = host->process;
  to_server_ = std::make_shared<Link>(network_, client, server);
  to_client_ = std::make_shared<Link>(network_, server, client);
  to_client_->SetDelay(delay_to_client_);
  network_.Add(shared_from_this());
  to_server_->Send([self = shared_from_this()] {
    // It was cancelled or broken on the way.
    if (self->status_ || self->server_done_) return self->OnServerDone();
    self->accepted_ = true;
    if (self->Accept()) return;
    self->OnServerDone();
    self->FinishFromServer({grpc::StatusCode::UNIMPLEMENTED, self->method_});
  });
  network_.scheduler().After(kKeepalive, client,
                             [self = shared_from_this()] { self->RefuseUnlessAccepted(); });
  SetDeadlines();
}

void RpcCall::RefuseUnlessAccepted() {
  if (accepted_ || status_) return;
  to_server_->Close();
  OnServerDone();
  SetClientStatus({grpc::StatusCode::UNAVAILABLE, "the connection timed out"}, true);
}

// Both ends watch the deadline by themselves.
void RpcCall::SetDeadlines() {
  const gpr_timespec deadline = context_->raw_deadline();
  grpc::testing::InteropServerContextInspector::SetDeadline(server_context_, deadline);
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return;
  const Duration left = context_->deadline() - std::chrono::system_clock::now();
  network_.scheduler().After(left, client, [self = shared_from_this()] {
    self->CancelByClient({grpc::StatusCode::DEADLINE_EXCEEDED, "the deadline has passed"});
  });
  network_.scheduler().After(left, server, [self = shared_from_this()] {
    if (self->accepted_ && !self->server_done_) self->CancelServer();
  });
}

// True when the connection is reset under a message.
bool RpcCall::BreaksNow() {
  const uint64_t broken = network_.faults().call_broken;
  if (broken == 0 || over() || !network_.random().Chance(broken)) return false;
  Break(nullptr);
  return true;
}

void RpcCall::ArriveAtServer(std::function<void()> deliver) {
  if (to_server_ == nullptr || BreaksNow()) return;
  to_server_->Send([self = shared_from_this(), deliver = std::move(deliver)] {
    if (!self->server_done_) deliver();
  });
}

void RpcCall::ArriveAtClient(std::function<void()> deliver) {
  if (BreaksNow()) return;
  to_client_->Send([self = shared_from_this(), deliver = std::move(deliver)] {
    if (!self->client_done_) deliver();
  });
}

void RpcCall::SetClientStatus(const grpc::Status& status, bool abort) {
  if (status_ || client_done_) return;
  status_ = status;
  EndClient(abort);
}

void RpcCall::FinishFromServer(const grpc::Status& status) {
  ArriveAtClient([this, status] { SetClientStatus(status, false); });
}

void RpcCall::CancelByClient(grpc::Status why) {
  if (status_ || client_done_) return;
  SetClientStatus(why, true);
  ArriveAtServer([this] { CancelServer(); });
}

void RpcCall::Break(const Process* dead) {
  const grpc::Status why(grpc::StatusCode::UNAVAILABLE, "the connection is broken");
  if (to_server_ != nullptr) to_server_->Close();
  if (to_client_ != nullptr) to_client_->Close();
  const Duration delay = network_.Delay(client, server);
  if (dead == client) client_done_ = true;
  if (dead == server || !accepted_) server_done_ = true;
  LetGoIfOver();
  if (!client_done_) {
    network_.scheduler().After(
        delay, client, [self = shared_from_this(), why] { self->SetClientStatus(why, true); });
  }
  if (server_done_) return;
  network_.scheduler().After(delay, server, [self = shared_from_this()] {
    if (!self->server_done_) self->CancelServer();
  });
}

void RpcCall::Shut() {
  if (!accepted_) OnServerDone();
  if (!server_done_) CancelServer();
}

void RpcCall::OnClientDone() {
  g_calls.erase(context_);
  context_ = nullptr;
  client_done_ = true;
  LetGoIfOver();
}

void RpcCall::OnServerDone() {
  server_done_ = true;
  LetGoIfOver();
}

void RpcCall::LetGoIfOver() {
  if (!over() || self_ == nullptr) return;
  network_.scheduler().After(Duration::zero(), nullptr, [self = std::move(self_)] {});
}

}  // namespace penstock::world
