#include "router/fleet/worker_calls.h"

#include <grpcpp/channel.h>

#include <chrono>

#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

// gRPC takes a time of day, and converts it to its own steady clock at once.
std::chrono::system_clock::time_point WallTimeOf(TimePoint time) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(time -
                                                                         SteadyClock().Now());
}

// One server-streaming call. gRPC calls it until OnDone; `self_` keeps it alive until then.
template <class Request>
class StreamingCall : public WorkerCall, public grpc::ClientReadReactor<v1::PrefillEvent> {
 public:
  StreamingCall(const WorkerCallArgs& args, Request request)
      : channel_(args.channel),
        listener_(args.listener),
        attempt_(args.attempt),
        request_(std::move(request)) {
    if (args.deadline != TimePoint::max()) context_.set_deadline(WallTimeOf(args.deadline));
    AddTrace(args.trace, context_);
  }

  template <class Stub>
  static std::shared_ptr<WorkerCall> Start(const WorkerCallArgs& args, Request request,
                                           void (*open)(Stub&, grpc::ClientContext*, const Request*,
                                                        StreamingCall*)) {
    auto call = std::make_shared<StreamingCall>(args, std::move(request));
    call->self_ = call;
    Stub stub(call->channel_);
    open(stub, &call->context_, &call->request_, call.get());
    call->StartRead(&call->event_);
    call->StartCall();
    return call;
  }

  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    listener_->OnPrefillEvent(attempt_, event_);
    this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    listener_->OnCallEnded(attempt_, Side::kPrefill, FromGrpcStatus(status));
    // Breaks the reference cycle: the listener owns its calls, and a call owns its listener.
    listener_.reset();
    const std::shared_ptr<StreamingCall> self = std::move(self_);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<WorkerCallListener> listener_;
  const int attempt_;
  const Request request_;
  grpc::ClientContext context_;
  v1::PrefillEvent event_;
  std::shared_ptr<StreamingCall> self_;
};

using PrefillCall = StreamingCall<v1::PrefillRequest>;
using MoveCall = StreamingCall<v1::MoveRequest>;

}  // namespace

std::shared_ptr<WorkerCall> StartPrefill(const WorkerCallArgs& args, v1::PrefillRequest request) {
  using Stub = v1::PrefillWorker::Stub;
  return PrefillCall::Start<Stub>(
      args, std::move(request),
      [](Stub& stub, grpc::ClientContext* context, const v1::PrefillRequest* to_send,
         PrefillCall* call) { stub.async()->Prefill(context, to_send, call); });
}

std::shared_ptr<WorkerCall> StartMove(const WorkerCallArgs& args, v1::MoveRequest request) {
  using Stub = v1::DecodeWorker::Stub;
  return MoveCall::Start<Stub>(
      args, std::move(request),
      [](Stub& stub, grpc::ClientContext* context, const v1::MoveRequest* to_send, MoveCall* call) {
        stub.async()->Move(context, to_send, call);
      });
}

}  // namespace penstock
