#include "router/worker_calls.h"

#include <grpcpp/channel.h>

#include "base/rpc_server.h"
#include "base/rpc_trace.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

// One server-streaming call. gRPC calls it until OnDone; `self_` keeps it alive until then.
template <class Request, class Event>
class StreamingCall : public WorkerCall, public grpc::ClientReadReactor<Event> {
 public:
  StreamingCall(const WorkerCallArgs& args, Side side, Request request)
      : channel_(args.channel),
        listener_(args.listener),
        leg_(args.leg),
        side_(side),
        request_(std::move(request)) {
    context_.set_deadline(args.deadline);
    AddTrace(args.trace, context_);
  }

  template <class Stub>
  static std::shared_ptr<WorkerCall> Start(const WorkerCallArgs& args, Side side, Request request,
                                           void (*open)(Stub&, grpc::ClientContext*, const Request*,
                                                        StreamingCall*)) {
    auto call = std::make_shared<StreamingCall>(args, side, std::move(request));
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
    if constexpr (std::is_same_v<Event, v1::PrefillEvent>) {
      listener_->OnPrefillEvent(leg_, event_);
    } else {
      listener_->OnDecodeEvent(leg_, event_);
    }
    this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    listener_->OnCallEnded(leg_, side_, FromGrpcStatus(status));
    // The listener holds calls, and they hold it, until here.
    listener_.reset();
    const std::shared_ptr<StreamingCall> self = std::move(self_);
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<WorkerCallListener> listener_;
  const int leg_;
  const Side side_;
  const Request request_;
  grpc::ClientContext context_;
  Event event_;
  std::shared_ptr<StreamingCall> self_;
};

using PrefillCall = StreamingCall<v1::PrefillRequest, v1::PrefillEvent>;
using DecodeCall = StreamingCall<v1::DecodeRequest, v1::DecodeEvent>;
using MoveCall = StreamingCall<v1::MoveRequest, v1::PrefillEvent>;

}  // namespace

std::shared_ptr<WorkerCall> StartPrefill(const WorkerCallArgs& args, v1::PrefillRequest request) {
  using Stub = v1::PrefillWorker::Stub;
  return PrefillCall::Start<Stub>(
      args, Side::kPrefill, std::move(request),
      [](Stub& stub, grpc::ClientContext* context, const v1::PrefillRequest* to_send,
         PrefillCall* call) { stub.async()->Prefill(context, to_send, call); });
}

std::shared_ptr<WorkerCall> StartDecode(const WorkerCallArgs& args, v1::DecodeRequest request) {
  using Stub = v1::DecodeWorker::Stub;
  return DecodeCall::Start<Stub>(
      args, Side::kDecode, std::move(request),
      [](Stub& stub, grpc::ClientContext* context, const v1::DecodeRequest* to_send,
         DecodeCall* call) { stub.async()->Decode(context, to_send, call); });
}

std::shared_ptr<WorkerCall> StartMove(const WorkerCallArgs& args, v1::MoveRequest request) {
  using Stub = v1::DecodeWorker::Stub;
  return MoveCall::Start<Stub>(
      args, Side::kPrefill, std::move(request),
      [](Stub& stub, grpc::ClientContext* context, const v1::MoveRequest* to_send, MoveCall* call) {
        stub.async()->Move(context, to_send, call);
      });
}

}  // namespace penstock
