#include "router/watch_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>

#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

constexpr Duration kLeastBackoff = std::chrono::milliseconds(100);
constexpr Duration kMostBackoff = std::chrono::seconds(1);
constexpr int kMaxWorkerMessageBytes = 16 << 20;

std::shared_ptr<grpc::Channel> MakeWorkerChannel(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // also bounds one attempt to connect
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A half-open connection is noticed after 4 s. Workers send a state each second, so their limit
  // on pings without data in between is not touched.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // sessions plan anew themselves
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

// What the link and the callbacks of its stream share.
struct WatchLink::State {
  Mutex mutex;
  CondVar closed;
  std::shared_ptr<Stream> stream GUARDED_BY(mutex);  // null: none is open
  bool heard GUARDED_BY(mutex) = false;              // a state came on the latest stream
};

// gRPC calls it until OnDone; until then State::stream keeps it alive.
class WatchLink::Stream : public grpc::ClientReadReactor<v1::WorkerState> {
 public:
  struct Args {
    std::string endpoint;
    std::shared_ptr<WorkerTable> table;
    std::shared_ptr<State> state;
    std::function<void()> on_news;
    std::shared_ptr<grpc::Channel> channel;
  };
  explicit Stream(Args args) : args_(std::move(args)), stub_(args_.channel) {}

  void Open() {
    stub_.async()->Watch(&context_, &request_, this);
    StartRead(&received_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    args_.table->OnState(args_.endpoint, received_);
    {
      MutexLock lock(args_.state->mutex);
      args_.state->heard = true;
    }
    args_.on_news();
    StartRead(&received_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::string reason = status.ok() ? "the worker closed it" : status.error_message();
    args_.table->OnWatchEnded(args_.endpoint, reason);
    args_.on_news();
    // The last reference goes at the end of this function.
    const std::shared_ptr<State> state = args_.state;
    std::shared_ptr<Stream> self;
    MutexLock lock(state->mutex);
    self.swap(state->stream);
    state->closed.NotifyAll();
  }

 private:
  const Args args_;
  v1::WorkerStatus::Stub stub_;
  grpc::ClientContext context_;
  v1::WatchRequest request_;
  v1::WorkerState received_;
};

WatchLink::WatchLink(std::string endpoint, std::shared_ptr<WorkerTable> table,
                     std::function<void()> on_news)
    : endpoint_(std::move(endpoint)),
      table_(std::move(table)),
      state_(std::make_shared<State>()),
      channel_(MakeWorkerChannel(endpoint_)),
      on_news_(std::move(on_news)),
      backoff_(kLeastBackoff) {
  table_->Add(endpoint_, channel_);
  if (const std::optional<uint32_t> index = table_->IndexOf(endpoint_)) {
    blocks_ = std::make_unique<BlockLink>(endpoint_, *index, table_, channel_);
  }
}

WatchLink::~WatchLink() {
  Drop();
  blocks_.reset();
  {
    MutexLock lock(state_->mutex);
    while (state_->stream != nullptr) state_->closed.Wait(state_->mutex);
  }
  table_->Remove(endpoint_);
}

void WatchLink::Tick(TimePoint now) {
  if (blocks_ != nullptr) blocks_->Tick(now);
  MutexLock lock(state_->mutex);
  if (state_->stream != nullptr) return;
  if (was_open_) {  // and is not any more
    was_open_ = false;
    backoff_ = state_->heard ? kLeastBackoff : std::min(backoff_ * 2, kMostBackoff);
    next_attempt_ = now + backoff_;
  }
  if (now < next_attempt_) return;
  was_open_ = true;
  state_->heard = false;
  table_->OnWatchStarted(endpoint_);
  state_->stream = std::make_shared<Stream>(Stream::Args{.endpoint = endpoint_,
                                                         .table = table_,
                                                         .state = state_,
                                                         .on_news = on_news_,
                                                         .channel = channel_});
  state_->stream->Open();
}

void WatchLink::Drop() {
  MutexLock lock(state_->mutex);
  if (state_->stream != nullptr) state_->stream->Cancel();
}

}  // namespace penstock
