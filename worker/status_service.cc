#include "worker/status_service.h"

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

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr int kLooksUntilHeartbeat = 20;

struct Source {
  std::function<v1::WorkerState()> state;
  std::atomic<bool> stopping{false};
};

// One watching router. Alternates between a write and a wait; both end in OnTurn.
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
    if (bytes == sent_ && ++quiet_looks_ < kLooksUntilHeartbeat) return Wait();
    sent_ = std::move(bytes);
    quiet_looks_ = 0;
    StartWrite(&state_);
  }

  void Wait() {
    alarm_.Set(std::chrono::system_clock::now() + kLook, [this](bool) { Look(); });
  }

  Source& source_;
  std::atomic<bool> cancelled_{false};
  v1::WorkerState state_;
  std::string sent_;
  int quiet_looks_ = 0;
  grpc::Alarm alarm_;
};

}  // namespace

class StatusService::Impl final : public v1::WorkerStatus::CallbackService {
 public:
  explicit Impl(std::function<v1::WorkerState()> state) { source.state = std::move(state); }
  grpc::ServerWriteReactor<v1::WorkerState>* Watch(grpc::CallbackServerContext*,
                                                   const v1::WatchRequest*) override {
    return new penstock::Watch(source);
  }
  Source source;
};

StatusService::StatusService(std::function<v1::WorkerState()> state)
    : impl_(std::make_unique<Impl>(std::move(state))) {}
StatusService::~StatusService() = default;
grpc::Service* StatusService::service() { return impl_.get(); }
void StatusService::Stop() { impl_->source.stopping = true; }

}  // namespace penstock
