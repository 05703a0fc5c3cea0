#include "router/block_link.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>

#include "base/log.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

constexpr Duration kLeastBackoff = std::chrono::milliseconds(100);
constexpr Duration kMostBackoff = std::chrono::seconds(10);

}  // namespace

// What the link and the callbacks of its stream share.
struct BlockLink::State {
  Mutex mutex;
  CondVar closed;
  std::shared_ptr<Stream> stream GUARDED_BY(mutex);  // null: none is open
  bool heard GUARDED_BY(mutex) = false;              // a good batch came on the latest stream
};

// gRPC calls it until OnDone; until then State::stream keeps it alive.
class BlockLink::Stream : public grpc::ClientReadReactor<v1::BlockEvents> {
 public:
  struct Args {
    std::string endpoint;
    uint32_t index;
    std::shared_ptr<WorkerTable> table;
    std::shared_ptr<State> state;
    std::shared_ptr<grpc::Channel> channel;
  };
  explicit Stream(Args args) : args_(std::move(args)), stub_(args_.channel) {}

  void Open() {
    stub_.async()->WatchBlocks(&context_, &request_, this);
    StartRead(&received_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    const absl::Status status = args_.table->prefixes().OnEvents(args_.index, received_);
    if (!status.ok()) {
      LogWarning("{}: its KV events are read anew: {}", args_.endpoint, Message(status));
      context_.TryCancel();
      return;
    }
    {
      MutexLock lock(args_.state->mutex);
      args_.state->heard = true;
    }
    StartRead(&received_);
  }

  void OnDone(const grpc::Status&) override {
    args_.table->prefixes().OnStreamEnded(args_.index);
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
  v1::WatchBlocksRequest request_;
  v1::BlockEvents received_;
};

BlockLink::BlockLink(std::string endpoint, uint32_t index, std::shared_ptr<WorkerTable> table,
                     std::shared_ptr<grpc::Channel> channel)
    : endpoint_(std::move(endpoint)),
      index_(index),
      table_(std::move(table)),
      channel_(std::move(channel)),
      state_(std::make_shared<State>()),
      backoff_(kLeastBackoff) {}

BlockLink::~BlockLink() {
  MutexLock lock(state_->mutex);
  if (state_->stream != nullptr) state_->stream->Cancel();
  while (state_->stream != nullptr) state_->closed.Wait(state_->mutex);
}

void BlockLink::Tick(TimePoint now) {
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
  table_->prefixes().OnStreamStarted(index_);
  state_->stream = std::make_shared<Stream>(Stream::Args{.endpoint = endpoint_,
                                                         .index = index_,
                                                         .table = table_,
                                                         .state = state_,
                                                         .channel = channel_});
  state_->stream->Open();
}

}  // namespace penstock
