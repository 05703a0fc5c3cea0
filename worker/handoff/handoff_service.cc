#include "worker/handoff/handoff_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "base/log/log.h"
#include "base/mutex.h"
#include "base/rpc/rpc_trace.h"
#include "proto/handoff.grpc.pb.h"

namespace penstock {
namespace {

// Answers that may wait for a peer. A handoff has a few, and a heartbeat a second.
constexpr size_t kAnswersMax = 64;

// The stream of one handoff. gRPC keeps it alive until OnDone, and the handoff until it has ended.
class ReceiverStream final
    : public HandoffReceiverChannel,
      public grpc::ServerBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>,
      public std::enable_shared_from_this<ReceiverStream> {
 public:
  ReceiverStream(KvReceiver& receiver, grpc::CallbackServerContext& context)
      : receiver_(receiver), context_(context) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  void Send(const v1::HandoffReceiverMessage& message) override {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (outgoing_.size() >= kAnswersMax) return Drop();
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close() override {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    if (outgoing_.empty()) Finish(grpc::Status::OK);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return CloseOnce();
    receiver_.OnControl(shared_from_this(), incoming_);
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closed_) {
      Finish(grpc::Status::OK);
    }
  }

  void OnCancel() override { CloseOnce(); }

  void OnDone() override { const std::shared_ptr<ReceiverStream> last = std::move(self_); }

 private:
  // The peer sends no more: the receiver forgets this stream, and the call ends.
  void CloseOnce() {
    receiver_.OnControlClosed(this);
    Close();
  }

  // The peer sends, but does not read: ends the call, and with it the handoff.
  void Drop() REQUIRES(mutex_) {
    if (std::exchange(dropped_, true)) return;
    LogWarning("handoff_stream_dropped", "{} does not read its {} answers", context_.peer(),
               outgoing_.size());
    context_.TryCancel();
  }

  KvReceiver& receiver_;
  grpc::CallbackServerContext& context_;
  v1::HandoffSenderMessage incoming_;
  std::shared_ptr<ReceiverStream> self_;
  Mutex mutex_;
  std::deque<v1::HandoffReceiverMessage> outgoing_ GUARDED_BY(mutex_);  // front is being written
  bool closed_ GUARDED_BY(mutex_) = false;
  bool dropped_ GUARDED_BY(mutex_) = false;
};

}  // namespace

class HandoffService::Impl final : public v1::HandoffTarget::CallbackService {
 public:
  explicit Impl(KvReceiver& receiver) : receiver_(receiver) {}

  grpc::ServerBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>* Handoff(
      grpc::CallbackServerContext* context) override {
    LogRequest(LogLevel::kDebug, {.trace = TraceOf(context->client_metadata()).trace_id},
               "handoff_opened", {{"from", context->peer()}});
    auto stream = std::make_shared<ReceiverStream>(receiver_, *context);
    stream->Begin();
    return stream.get();
  }

 private:
  KvReceiver& receiver_;
};

HandoffService::HandoffService(KvReceiver& receiver) : impl_(std::make_unique<Impl>(receiver)) {}
HandoffService::~HandoffService() = default;
grpc::Service* HandoffService::service() { return impl_.get(); }

}  // namespace penstock
