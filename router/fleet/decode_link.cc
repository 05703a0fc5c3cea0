#include "router/fleet/decode_link.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/batch_queue.h"
#include "base/rpc/rpc_server.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

// The limit of one message. A request that is larger by itself gets a stream of its own: a worker
// that refuses it as too large ends the whole stream.
constexpr size_t kMessageBytesMax = 1 << 20;

// The time left until `deadline`; 0: no deadline. A deadline that has passed gives 1 ms.
uint32_t TimeoutMs(TimePoint deadline) {
  if (deadline == TimePoint::max()) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock().Now());
  return static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, UINT32_MAX));
}

}  // namespace

// One stream with its sessions. gRPC calls it until OnDone, and `self_` keeps it alive until then.
// Its lock is a leaf: no listener is called while it is held.
class DecodeLink::Stream final
    : public grpc::ClientBidiReactor<v1::DecodeCommands, v1::DecodeEvents>,
      public std::enable_shared_from_this<Stream> {
 public:
  // `alone`: the stream is for one session, and ends with it.
  Stream(const std::shared_ptr<grpc::Channel>& channel, bool alone)
      : channel_(channel), alone_(alone) {}

  // Calls the worker, with a first session: it is registered before the call can fail.
  uint64_t Open(const WorkerCallArgs& args, v1::DecodeRequest& request) EXCLUDES(mutex_) {
    self_ = shared_from_this();
    v1::DecodeWorker::Stub stub(channel_);
    stub.async()->Sessions(&context_, this);
    StartRead(&events_);
    const uint64_t number = *Start(args, request);
    StartCall();
    return number;
  }

  // The session's number; nullopt when the stream is broken.
  std::optional<uint64_t> Start(const WorkerCallArgs& args, v1::DecodeRequest& request)
      EXCLUDES(mutex_) {
    const size_t bytes = request.ByteSizeLong();
    MutexLock lock(mutex_);
    if (broken_) return std::nullopt;
    const uint64_t number = ++last_number_;
    sessions_.emplace(number, Entry{.listener = args.listener, .attempt = args.attempt});
    v1::DecodeCommand& command = *queue_.Add(bytes).add_commands();
    command.set_number(number);
    *command.mutable_open() = std::move(request);
    WriteNext();
    return number;
  }

  void CancelSession(uint64_t number) EXCLUDES(mutex_) {
    Entry gone;  // destroyed after the lock is released
    MutexLock lock(mutex_);
    if (!Remove(number, gone) || broken_) return;
    v1::DecodeCommand& command = *queue_.Add(1).add_commands();
    command.set_number(number);
    command.mutable_cancel();
    WriteNext();
  }

  void Cancel() { context_.TryCancel(); }
  void AwaitDone() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
  }

  void OnReadDone(bool ok) override EXCLUDES(mutex_) {
    if (!ok) {
      MutexLock lock(mutex_);
      broken_ = true;  // OnDone follows
      return;
    }
    for (const v1::DecodeEvent& event : events_.events()) {
      if (const Entry to = Find(event.number()); to.listener != nullptr) {
        to.listener->OnDecodeEvent(to.attempt, event);
      }
    }
    for (const v1::SessionToken& token : events_.tokens()) {
      if (const Entry to = Find(token.number()); to.listener != nullptr) {
        to.listener->OnDecodeToken(to.attempt, token.token());
      }
    }
    for (const v1::SessionEnd& end : events_.ends()) OnSessionEnd(end);
    StartRead(&events_);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    queue_.OnSent();
    if (!ok) broken_ = true;
    WriteNext();
  }

  void OnDone(const grpc::Status& status) override EXCLUDES(mutex_) {
    std::unordered_map<uint64_t, Entry> open;
    {
      MutexLock lock(mutex_);
      broken_ = true;
      open.swap(sessions_);
    }
    const absl::Status why = status.ok() ? Unavailable("the worker has ended the sessions' stream")
                                         : FromGrpcStatus(status);
    for (const auto& [number, entry] : open) {
      entry.listener->OnCallEnded(entry.attempt, Side::kDecode, why);
    }
    const std::shared_ptr<Stream> last = std::move(self_);
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  struct Entry {
    // nullptr: no such session. The listener owns the call, and the call's session owns it.
    std::shared_ptr<WorkerCallListener> listener;
    int attempt = 0;
  };

  Entry Find(uint64_t number) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(number);
    return found == sessions_.end() ? Entry() : found->second;
  }

  bool Remove(uint64_t number, Entry& removed) REQUIRES(mutex_) {
    const auto found = sessions_.find(number);
    if (found == sessions_.end()) return false;
    removed = std::move(found->second);
    sessions_.erase(found);
    if (alone_) context_.TryCancel();
    return true;
  }

  void OnSessionEnd(const v1::SessionEnd& end) EXCLUDES(mutex_) {
    Entry ended;
    {
      MutexLock lock(mutex_);
      if (!Remove(end.number(), ended)) return;
    }
    ended.listener->OnCallEnded(
        ended.attempt, Side::kDecode,
        absl::Status(static_cast<absl::StatusCode>(end.code()), end.message()));
  }

  void WriteNext() REQUIRES(mutex_) {
    if (!broken_ && !queue_.sending() && queue_.waiting()) StartWrite(&queue_.Send());
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const bool alone_;
  grpc::ClientContext context_;
  v1::DecodeEvents events_;  // the message read last; its memory is reused for the next

  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, Entry> sessions_ GUARDED_BY(mutex_);  // open ones, by number
  uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  BatchQueue<v1::DecodeCommands> queue_ GUARDED_BY(mutex_){kMessageBytesMax};
  bool broken_ GUARDED_BY(mutex_) = false;  // writes are no longer possible
  bool done_ GUARDED_BY(mutex_) = false;    // OnDone has returned: gRPC makes no more calls
  std::shared_ptr<Stream> self_;            // the ownership of gRPC
};

class DecodeLink::Call final : public WorkerCall {
 public:
  Call(std::shared_ptr<DecodeLink> link, std::shared_ptr<Stream> stream, uint64_t number)
      : link_(std::move(link)), stream_(std::move(stream)), number_(number) {}
  void Cancel() override { stream_->CancelSession(number_); }

 private:
  const std::shared_ptr<DecodeLink> link_;  // kept alive while the session is open
  const std::shared_ptr<Stream> stream_;
  const uint64_t number_;
};

DecodeLink::DecodeLink(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

DecodeLink::~DecodeLink() {
  if (stream_ != nullptr) stream_->Cancel();
}

std::shared_ptr<WorkerCall> DecodeLink::Start(const WorkerCallArgs& args,
                                              v1::DecodeRequest request) {
  if (!args.trace.trace_id.empty()) request.set_traceparent(TraceParent(args.trace));
  request.set_timeout_ms(TimeoutMs(args.deadline));
  const bool alone = request.ByteSizeLong() > kMessageBytesMax;
  MutexLock lock(mutex_);
  if (stream_ != nullptr && !alone) {
    if (const std::optional<uint64_t> number = stream_->Start(args, request)) {
      return std::make_shared<Call>(shared_from_this(), stream_, *number);
    }
  }
  auto stream = std::make_shared<Stream>(channel_, alone);
  const uint64_t number = stream->Open(args, request);
  if (!alone) stream_ = stream;
  return std::make_shared<Call>(shared_from_this(), std::move(stream), number);
}

void DecodeLink::Close() {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_;
  }
  if (stream == nullptr) return;
  stream->Cancel();
  stream->AwaitDone();
}

}  // namespace penstock
