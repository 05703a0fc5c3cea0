#include "worker/handoff/handoff_client.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "kvstore/handoff/handoff_types.h"
#include "proto/handoff.grpc.pb.h"
#include "worker/handoff/peer_channels.h"

namespace penstock {
namespace {

// The stream of one handoff. gRPC keeps it alive until OnDone, and the handoff until it has ended.
class SenderStream final
    : public HandoffSenderChannel,
      public grpc::ClientBidiReactor<v1::HandoffSenderMessage, v1::HandoffReceiverMessage>,
      public std::enable_shared_from_this<SenderStream> {
 public:
  SenderStream(KvSender& sender, const HandoffKey& key, std::shared_ptr<grpc::Channel> channel,
               std::function<void(SenderStream*)> on_done)
      : sender_(sender),
        key_(key),
        stub_(v1::HandoffTarget::NewStub(std::move(channel))),
        on_done_(std::move(on_done)) {}

  void Begin(const TraceContext& trace) {
    AddTrace(trace, context_);
    self_ = shared_from_this();
    stub_->async()->Handoff(&context_, this);
    StartRead(&incoming_);
    AddHold();  // Send is called outside of reactions, until Close.
    StartCall();
  }

  void Send(const v1::HandoffSenderMessage& message) override {
    MutexLock lock(mutex_);
    if (closed_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Close() override {
    MutexLock lock(mutex_);
    CloseLocked();
  }

  void TryCancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      CloseLocked();
    } else if (!outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closed_) {
      StartWritesDone();
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close();
    sender_.OnControl(key_, incoming_);
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    sender_.OnControlClosed(key_, FromGrpcStatus(status));
    on_done_(this);
    const std::shared_ptr<SenderStream> last = std::move(self_);
  }

 private:
  void CloseLocked() REQUIRES(mutex_) {
    if (closed_) return;
    closed_ = true;
    if (outgoing_.empty()) StartWritesDone();
    RemoveHold();
  }

  KvSender& sender_;
  const HandoffKey key_;
  const std::unique_ptr<v1::HandoffTarget::Stub> stub_;
  const std::function<void(SenderStream*)> on_done_;
  grpc::ClientContext context_;
  v1::HandoffReceiverMessage incoming_;
  std::shared_ptr<SenderStream> self_;
  Mutex mutex_;
  std::deque<v1::HandoffSenderMessage> outgoing_ GUARDED_BY(mutex_);  // front is being written
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace

class HandoffClient::Streams {
 public:
  explicit Streams(std::shared_ptr<grpc::ChannelCredentials> credentials)
      : channels(std::move(credentials)) {}

  PeerChannels channels;

  void Insert(SenderStream* stream) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_.insert(stream);
  }

  void Erase(SenderStream* stream) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_.erase(stream);
    changed_.NotifyAll();
  }

  void CancelAll() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (SenderStream* stream : open_) stream->TryCancel();
    while (!open_.empty()) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::set<SenderStream*> open_ GUARDED_BY(mutex_);  // between Begin and OnDone
  friend class HandoffClient;
  KvSender* sender_ = nullptr;
};

HandoffClient::HandoffClient(KvSender& sender,
                             std::shared_ptr<grpc::ChannelCredentials> credentials)
    : streams_(std::make_shared<Streams>(std::move(credentials))) {
  streams_->sender_ = &sender;
}

HandoffClient::~HandoffClient() { streams_->CancelAll(); }

std::shared_ptr<HandoffSenderChannel> HandoffClient::Open(const HandoffKey& key,
                                                          const std::string& endpoint,
                                                          const TraceContext& trace) {
  auto stream = std::make_shared<SenderStream>(
      *streams_->sender_, key, streams_->channels.To(endpoint),
      [streams = streams_](SenderStream* done) { streams->Erase(done); });
  streams_->Insert(stream.get());
  stream->Begin(trace);
  return stream;
}

}  // namespace penstock
