#include "lab/fake/paced_worker.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/mutex.h"
#include "decode_worker/session_streams.h"
#include "lab/fake/fake_model.h"
#include "proto/worker.grpc.pb.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

// A stream of messages that are written one after the other. gRPC calls it until OnDone.
template <class Message>
class Writer : public grpc::ServerWriteReactor<Message>,
               public std::enable_shared_from_this<Writer<Message>> {
 public:
  void Keep() { self_ = this->shared_from_this(); }
  void Send(Message message, bool last) {
    MutexLock lock(mutex_);
    if (gone_) return;
    waiting_.push_back(std::move(message));
    last_ = last;
    if (waiting_.size() == 1) this->StartWrite(&waiting_.front());
  }
  // Nothing more is sent.
  void End(const grpc::Status& status) {
    MutexLock lock(mutex_);
    EndLocked(status);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
    waiting_.pop_front();
    if (!gone_ && !waiting_.empty()) return this->StartWrite(&waiting_.front());
    if (last_ && waiting_.empty()) EndLocked(grpc::Status::OK);
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override { const auto self = std::move(self_); }
  bool gone() const {
    MutexLock lock(mutex_);
    return gone_;
  }

 private:
  void EndLocked(const grpc::Status& status) REQUIRES(mutex_) {
    if (std::exchange(gone_, true)) return;
    this->Finish(status);
  }

  mutable Mutex mutex_;
  std::deque<Message> waiting_ GUARDED_BY(mutex_);
  bool last_ GUARDED_BY(mutex_) = false;
  bool gone_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<Writer> self_;
};

// The state of one choice.
struct Session final : StreamedSession, std::enable_shared_from_this<Session> {
  using Due = std::function<void(std::shared_ptr<Session>)>;
  Session(Due when_begun, SessionWriter to) : begun(std::move(when_begun)), outlet(std::move(to)) {}

  void Begin(const v1::DecodeRequest& request) override {
    v1::DecodeEvent event;
    event.mutable_admitted();
    outlet.Write(event, Sending::kNow);
    event.mutable_committed();
    outlet.Write(event, Sending::kNow);
    const std::vector<uint32_t> tokens(request.tokens().begin(), request.tokens().end());
    choice.emplace(tokens, request.prompt_tokens(), request.sampling(), 0);
    seed = request.sampling().seed();
    choice->Next();  // the prefill worker's
    begun(shared_from_this());
  }
  void OnCancelled(const absl::Status& why) override {
    gone = true;
    outlet.End(why, Sending::kNow);
  }

  const Due begun;
  const SessionWriter outlet;
  std::optional<FakeChoice> choice;
  uint64_t seed = 0;
  std::atomic<bool> gone{false};
};

}  // namespace

class PacedWorker::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), status_(*this), decode_(streams_) {
    state_.set_worker_id(options.worker_id);
    state_.set_incarnation(RandomU64());
    state_.set_role(v1::WorkerState::DECODE);
    state_.set_phase(v1::WorkerState::READY);
    state_.set_model_fingerprint(1);
    state_.set_layout_fingerprint(2);
    state_.set_block_tokens(16);
    state_.set_max_model_len(2048);
    state_.set_kv_blocks_total(10'000'000);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.RegisterService(&status_);
    builder.RegisterService(&decode_);
    server_ = builder.BuildAndStart();
    PENSTOCK_CHECK(server_ != nullptr, "a paced worker cannot listen");
    endpoint = fmt::format("127.0.0.1:{}", port);
    ticker_ = std::thread([this] { Tick(); });
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    ticker_.join();
    for (const auto& watcher : watchers_) watcher->End(grpc::Status::OK);
    streams_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::string endpoint;

 private:
  class StatusService final : public v1::WorkerStatus::CallbackService {
   public:
    explicit StatusService(Impl& owner) : owner_(owner) {}
    grpc::ServerWriteReactor<v1::WorkerState>* Watch(grpc::CallbackServerContext*,
                                                     const v1::WatchRequest*) override {
      const auto writer = std::make_shared<Writer<v1::WorkerState>>();
      writer->Keep();
      writer->Send(owner_.state_, /*last=*/false);
      MutexLock lock(owner_.mutex_);
      owner_.watchers_.push_back(writer);
      return writer.get();
    }

   private:
    Impl& owner_;
  };

  class DecodeService final : public v1::DecodeWorker::CallbackService {
   public:
    explicit DecodeService(SessionStreams& streams) : streams_(streams) {}
    grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Sessions(
        grpc::CallbackServerContext*) override {
      return streams_.Serve();
    }

   private:
    SessionStreams& streams_;
  };

  void Begin(std::shared_ptr<Session> session) {
    const Duration apart = options_.token_every * (RandomU64() % 1024) / 1024;
    MutexLock lock(mutex_);
    due_.emplace(std::chrono::steady_clock::now() + apart, std::move(session));
    changed_.NotifyAll();
  }

  // When a token that is due then leaves.
  TimePoint StepOf(TimePoint due) const {
    if (options_.step == Duration::zero()) return due;
    const Duration since = due.time_since_epoch() - phase_;
    return TimePoint((since / options_.step + 1) * options_.step + phase_);
  }

  // The ticker's thread.
  void Tick() {
    TimePoint next_state = std::chrono::steady_clock::now();
    while (true) {
      {
        MutexLock lock(mutex_);
        if (stop_) return;
        const TimePoint now = std::chrono::steady_clock::now();
        TimePoint next = next_state;
        if (!due_.empty()) next = std::min(next, StepOf(due_.begin()->first));
        if (now < next) {
          changed_.WaitFor(mutex_, next - now);
          continue;
        }
        if (now >= next_state) {
          next_state = now + std::chrono::milliseconds(500);
          std::erase_if(watchers_, [](const auto& watcher) { return watcher->gone(); });
          for (const auto& watcher : watchers_) watcher->Send(state_, /*last=*/false);
        }
        while (!due_.empty() && StepOf(due_.begin()->first) <= now) {
          auto node = due_.extract(due_.begin());
          if (!Emit(*node.mapped())) continue;
          node.key() += options_.token_every;
          due_.insert(std::move(node));
        }
        streams_.FlushStep();
      }
    }
  }

  // True while it has more tokens.
  bool Emit(Session& session) {
    if (session.gone) return false;
    const uint32_t position = session.choice->position();
    const v1::TokenOut token = session.choice->Next();
    if (options_.log != nullptr) {
      options_.log->Note(session.seed, position, std::chrono::steady_clock::now());
    }
    session.outlet.WriteToken(token);
    if (!session.choice->ended()) return true;
    session.outlet.End(absl::OkStatus(), Sending::kWithStep);
    return false;
  }

  const Options options_;
  // Workers do not step together.
  const Duration phase_{options_.step == Duration::zero()
                            ? 0
                            : static_cast<int64_t>(RandomU64() >> 1) % options_.step.count()};
  v1::WorkerState state_;
  StatusService status_;
  SessionStreams streams_{[this](SessionWriter outlet) {
    return std::make_shared<Session>(
        [this](std::shared_ptr<Session> begun) { Begin(std::move(begun)); }, std::move(outlet));
  }};
  DecodeService decode_;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  std::multimap<TimePoint, std::shared_ptr<Session>> due_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Writer<v1::WorkerState>>> watchers_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

PacedWorker::PacedWorker(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
PacedWorker::~PacedWorker() = default;
const std::string& PacedWorker::endpoint() const { return impl_->endpoint; }

}  // namespace penstock
