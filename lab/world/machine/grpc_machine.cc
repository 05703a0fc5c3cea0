// gRPC as the world's machine has it: these definitions take the place of gRPC's own and of
// base/rpc's server in the program that links them, so that no call reaches a socket and no timer a
// thread of gRPC.
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "base/lifecycle.h"
#include "base/rpc/rpc_server.h"
#include "lab/world/machine/machine.h"
#include "lab/world/machine/network.h"
#include "lab/world/machine/rpc_call.h"
#include "lab/world/machine/rpc_channel.h"

namespace world = penstock::world;
using penstock::Duration;

// ---------------------------------------------------------------- time

extern "C" gpr_timespec gpr_now(gpr_clock_type clock) {
  const auto now = clock == GPR_CLOCK_REALTIME
                       ? std::chrono::system_clock::now().time_since_epoch()
                       : std::chrono::steady_clock::now().time_since_epoch();
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return {ns / 1'000'000'000, static_cast<int32_t>(ns % 1'000'000'000), clock};
}

namespace {

struct Alarming {
  std::function<void(bool)> fire;
  world::Process* process = nullptr;
};

Duration Until(gpr_timespec deadline) {
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  return std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

// An alarm's pointer is a shared pointer to its callback, which is empty once it was called.
using AlarmState = std::shared_ptr<Alarming>;
AlarmState*& StateOf(grpc::internal::CompletionQueueTag*& tag) {
  return reinterpret_cast<AlarmState*&>(tag);
}

// As in gRPC, the callback is called once, also after a cancellation, and never in this call.
void Fire(const AlarmState& alarming, Duration delay, bool on_time) {
  world::Scheduler::current()->After(delay, alarming->process, [alarming, on_time] {
    if (auto fire = std::exchange(alarming->fire, nullptr)) fire(on_time);
  });
}

}  // namespace

grpc::Alarm::Alarm() : grpc::GrpcLibraryCodegen(false), alarm_(nullptr) {
  StateOf(alarm_) = new AlarmState(std::make_shared<Alarming>());
}
grpc::Alarm::~Alarm() {
  Cancel();
  delete StateOf(alarm_);
}
void grpc::Alarm::Cancel() {
  const AlarmState state = *StateOf(alarm_);
  if (state->fire) Fire(state, Duration::zero(), false);
}
void grpc::Alarm::SetInternal(gpr_timespec deadline, std::function<void(bool)> fire) {
  const auto alarming = std::make_shared<Alarming>();
  alarming->fire = std::move(fire);
  alarming->process = world::Scheduler::current()->process();
  *StateOf(alarm_) = alarming;
  Fire(alarming, Until(deadline), true);
}

// ---------------------------------------------------------------- calls

void grpc::ClientContext::TryCancel() {
  const auto call = world::FindCall(this);
  if (call == nullptr) return;
  world::Network::current().scheduler().After(Duration::zero(), call->client, [call] {
    call->CancelByClient({grpc::StatusCode::CANCELLED, "the client has cancelled the call"});
  });
}

std::shared_ptr<grpc::ChannelCredentials> grpc::InsecureChannelCredentials() { return nullptr; }

// Only passed on as its base class, which is the first of both.
std::shared_ptr<grpc::Channel> grpc::CreateCustomChannel(
    const std::string& target, const std::shared_ptr<grpc::ChannelCredentials>&,
    const grpc::ChannelArguments&) {
  const auto made =
      std::make_shared<world::RpcChannel>(world::Scheduler::current()->process(), target);
  grpc::ChannelInterface* const base = made.get();
  return {made, reinterpret_cast<grpc::Channel*>(base)};
}

// ---------------------------------------------------------------- base/rpc/rpc_server.h

namespace penstock {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), Message(status)};
}
absl::Status FromGrpcStatus(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options) {
  std::unique_ptr<RpcServer> server(new RpcServer(options));
  server->endpoint_ = options.listen;
  world::Listen(options.listen,
                {.process = world::Scheduler::current()->process(), .services = options.services});
  return server;
}

RpcServer::RpcServer(const RpcServerOptions& options) : tls_(options.tls) {}
RpcServer::~RpcServer() { Stop(Duration::zero()); }
void RpcServer::SetServing(const std::string&, bool) {}

// Cancels the calls that are open after `grace`, and waits for their end.
void RpcServer::Stop(Duration grace) {
  if (endpoint_.empty()) return;
  world::StopListening(endpoint_);
  world::Network::current().CloseServer(world::Scheduler::current()->process(), grace);
  endpoint_.clear();
}

}  // namespace penstock
