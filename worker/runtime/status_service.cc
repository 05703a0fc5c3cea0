#include "worker/runtime/status_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

constexpr auto kStatusPollInterval = std::chrono::milliseconds(50);
constexpr int kStatusPollsUntilHeartbeat = 20;
constexpr auto kBlockPollInterval = std::chrono::milliseconds(20);
constexpr int kBlockPollsUntilHeartbeat = 40;

struct Source {
  std::function<v1::WorkerState()> state;
  StatusService::Subscribe subscribe;
  std::atomic<bool> stopping{false};
};

// The stream to one router. Alternates between a write and a wait.
class Watch final : public grpc::ServerWriteReactor<v1::WorkerState> {
 public:
  explicit Watch(Source& source) : source_(source) { Look(); }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    Wait();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  void Look() {
    if (cancelled_) return Finish(grpc::Status::CANCELLED);
    if (source_.stopping) return Finish(grpc::Status::OK);
    state_ = source_.state();
    std::string bytes = state_.SerializeAsString();
    if (bytes == sent_ && ++quiet_looks_ < kStatusPollsUntilHeartbeat) return Wait();
    sent_ = std::move(bytes);
    quiet_looks_ = 0;
    StartWrite(&state_);
  }

  void Wait() {
    alarm_.Set(std::chrono::system_clock::now() + kStatusPollInterval, [this](bool) { Look(); });
  }

  Source& source_;
  std::atomic<bool> cancelled_{false};
  v1::WorkerState state_;
  std::string sent_;
  int quiet_looks_ = 0;
  grpc::Alarm alarm_;
};

// The stream of block events to one router. Alternates between a write and a wait.
class BlockWatch final : public grpc::ServerWriteReactor<v1::BlockEvents> {
 public:
  explicit BlockWatch(Source& source) : source_(source), subscriber_(source.subscribe()) {
    message_.set_incarnation(source.state().incarnation());
    Look();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    message_.set_sequence(message_.sequence() + 1);
    Look();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  void Look() {
    if (cancelled_) return Finish(grpc::Status::CANCELLED);
    if (source_.stopping) return Finish(grpc::Status::OK);
    if (subscriber_->lost()) {
      return Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "this reader is too slow for the changes; call again for a new snapshot"});
    }
    BlockSubscriber::Batch batch = subscriber_->Take();
    // The first batch after the snapshot ends the snapshot, even if the batch is empty.
    const bool ends_snapshot = !batch.snapshot && !snapshot_ended_;
    if (batch.events.empty() && !ends_snapshot && ++quiet_looks_ < kBlockPollsUntilHeartbeat) {
      alarm_.Set(std::chrono::system_clock::now() + kBlockPollInterval, [this](bool) { Look(); });
      return;
    }
    snapshot_ended_ |= ends_snapshot;
    quiet_looks_ = 0;
    message_.set_snapshot(batch.snapshot);
    message_.clear_events();
    for (v1::BlockEvent& event : batch.events) message_.add_events()->Swap(&event);
    StartWrite(&message_);
  }

  Source& source_;
  const std::shared_ptr<BlockSubscriber> subscriber_;
  std::atomic<bool> cancelled_{false};
  v1::BlockEvents message_;
  bool snapshot_ended_ = false;
  int quiet_looks_ = 0;
  grpc::Alarm alarm_;
};

}  // namespace

class StatusService::Impl final : public v1::WorkerStatus::CallbackService {
 public:
  Impl(std::function<v1::WorkerState()> state, Subscribe subscribe) {
    source.state = std::move(state);
    source.subscribe = std::move(subscribe);
  }
  grpc::ServerWriteReactor<v1::BlockEvents>* WatchBlocks(grpc::CallbackServerContext*,
                                                         const v1::WatchBlocksRequest*) override {
    return new BlockWatch(source);
  }
  grpc::ServerWriteReactor<v1::WorkerState>* Watch(grpc::CallbackServerContext*,
                                                   const v1::WatchRequest*) override {
    return new penstock::Watch(source);
  }
  Source source;
};

StatusService::StatusService(std::function<v1::WorkerState()> state, Subscribe subscribe)
    : impl_(std::make_unique<Impl>(std::move(state), std::move(subscribe))) {}
StatusService::~StatusService() = default;
grpc::Service* StatusService::service() { return impl_.get(); }
void StatusService::Stop() { impl_->source.stopping = true; }

}  // namespace penstock
