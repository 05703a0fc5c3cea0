#include "cli/operate/top_workers.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/log/log_escape.h"
#include "base/mutex.h"
#include "cli/shell/connect.h"
#include "proto/names.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

constexpr Duration kSilent = std::chrono::seconds(3);
constexpr int kBlocksBarColumns = 20;

struct WorkerSeen {
  v1::WorkerState state;
  double steps_per_s = 0;
  bool fresh = false;
};

std::string_view PhaseOf(const WorkerSeen& seen) {
  return seen.fresh ? PhaseName(seen.state.phase()) : "silent";
}

// Used, reserved, cached and free blocks: "####++..      ".
std::string PoolBar(const v1::WorkerState& state) {
  const double total = std::max<double>(1, static_cast<double>(state.kv_blocks_total()));
  const auto columns = [&](uint64_t blocks) {
    return static_cast<int>(static_cast<double>(blocks) / total * kBlocksBarColumns + 0.999);
  };
  std::string bar(static_cast<size_t>(columns(state.kv_blocks_used())), '#');
  bar.append(static_cast<size_t>(columns(state.kv_blocks_reserved())), '+');
  bar.append(static_cast<size_t>(columns(state.kv_blocks_cached())), '.');
  bar.resize(kBlocksBarColumns, ' ');
  return bar;
}

std::string RowOf(const std::string& endpoint, const WorkerSeen& seen) {
  const v1::WorkerState& state = seen.state;
  const std::string name = Printable(state.worker_id().empty() ? endpoint : state.worker_id());
  return fmt::format("{:<24.24} {:<8} {:<10} {:>5} {:>5} {:>8} {:>5} {:>8.1f} [{}] {}/{}\n", name,
                     RoleName(state.role()), PhaseOf(seen), state.running(), state.waiting(),
                     state.waiting_tokens(), state.handoffs(), seen.steps_per_s, PoolBar(state),
                     state.kv_blocks_used() + state.kv_blocks_reserved(), state.kv_blocks_total());
}

nlohmann::ordered_json JsonOf(const std::string& endpoint, const WorkerSeen& seen) {
  const v1::WorkerState& state = seen.state;
  return {{"endpoint", endpoint},
          {"worker", state.worker_id()},
          {"role", RoleName(state.role())},
          {"state", PhaseOf(seen)},
          {"running", state.running()},
          {"waiting", state.waiting()},
          {"waiting_tokens", state.waiting_tokens()},
          {"handoffs", state.handoffs()},
          {"steps", state.steps()},
          {"kv_blocks_total", state.kv_blocks_total()},
          {"kv_blocks_used", state.kv_blocks_used()},
          {"kv_blocks_reserved", state.kv_blocks_reserved()},
          {"kv_blocks_cached", state.kv_blocks_cached()},
          {"metrics", state.metrics_endpoint()}};
}

}  // namespace

// The Watch stream of one worker, opened anew when it ends. Its own thread reads.
class WorkersScreen::Watch {
 public:
  Watch(std::string endpoint, std::shared_ptr<grpc::Channel> channel, const Clock& clock)
      : endpoint_(std::move(endpoint)),
        clock_(clock),
        channel_(std::move(channel)),
        thread_([this] { Loop(); }) {}
  ~Watch() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.NotifyAll();
    }
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  bool fresh() {
    MutexLock lock(mutex_);
    return heard_ && clock_.Now() - heard_at_ <= kSilent;
  }
  // Rates are since the last look.
  WorkerSeen Look() {
    MutexLock lock(mutex_);
    const TimePoint now = clock_.Now();
    WorkerSeen seen{
        .state = state_, .steps_per_s = 0, .fresh = heard_ && now - heard_at_ <= kSilent};
    const double seconds = std::chrono::duration<double>(now - looked_at_).count();
    if (seen.fresh && looked_at_ != TimePoint() && state_.steps() >= steps_then_ && seconds > 0) {
      seen.steps_per_s = static_cast<double>(state_.steps() - steps_then_) / seconds;
    }
    looked_at_ = now;
    steps_then_ = state_.steps();
    return seen;
  }

 private:
  void Loop() {
    const auto stub = v1::WorkerStatus::NewStub(channel_);
    while (true) {
      grpc::ClientContext context;
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        context_ = &context;
      }
      const auto stream = stub->Watch(&context, {});
      v1::WorkerState state;
      while (stream->Read(&state)) Take(state);
      stream->Finish();
      MutexLock lock(mutex_);
      context_ = nullptr;
      heard_ = false;
      if (!stopping_) changed_.WaitFor(mutex_, std::chrono::milliseconds(500));
    }
  }
  void Take(const v1::WorkerState& state) {
    MutexLock lock(mutex_);
    state_ = state;
    heard_ = true;
    heard_at_ = clock_.Now();
  }

  const std::string endpoint_;
  const Clock& clock_;
  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ GUARDED_BY(mutex_) = nullptr;
  v1::WorkerState state_ GUARDED_BY(mutex_);
  bool heard_ GUARDED_BY(mutex_) = false;
  TimePoint heard_at_ GUARDED_BY(mutex_);
  TimePoint looked_at_ GUARDED_BY(mutex_);
  uint64_t steps_then_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses the rest
};

WorkersScreen::WorkersScreen() = default;
WorkersScreen::~WorkersScreen() = default;

absl::StatusOr<std::unique_ptr<WorkersScreen>> WorkersScreen::Open(const TopOptions& options) {
  std::unique_ptr<WorkersScreen> screen(new WorkersScreen());
  for (const std::string& endpoint : options.workers) {
    ASSIGN_OR_RETURN(auto channel, Connect(endpoint, options.tls, Called::kProcess));
    screen->watches_.push_back(
        std::make_unique<Watch>(endpoint, std::move(channel), screen->clock_));
  }
  return screen;
}

std::string WorkersScreen::Text() {
  std::string text = fmt::format("{:<24} {:<8} {:<10} {:>5} {:>5} {:>8} {:>5} {:>8} {}\n", "worker",
                                 "role", "state", "run", "wait", "tokens", "kv", "steps/s",
                                 "blocks: # used, + reserved, . cached (evictable)");
  for (const auto& watch : watches_) text += RowOf(watch->endpoint(), watch->Look());
  return text;
}

std::string WorkersScreen::Json() {
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const auto& watch : watches_) workers.push_back(JsonOf(watch->endpoint(), watch->Look()));
  return workers.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool WorkersScreen::complete() {
  for (const auto& watch : watches_) {
    if (!watch->fresh()) return false;
  }
  return true;
}

}  // namespace penstock
