#include "lab/fake/fake_worker.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <map>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/lifecycle.h"
#include "base/mutex.h"
#include "lab/fake/fake_model.h"
#include "proto/worker.grpc.pb.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

using StopRequested = std::function<bool()>;

// How often a waiting call looks whether it was cancelled: the synchronous API cannot be told.
constexpr Duration kLook = std::chrono::milliseconds(5);

// Decides when and how calls stop. Any thread.
class Script {
 public:
  void HoldAt(uint32_t position) {
    MutexLock lock(mutex_);
    hold_at_ = position;
  }
  void Release() {
    MutexLock lock(mutex_);
    hold_at_.reset();
    changed_.NotifyAll();
  }
  void FailAt(uint32_t position, int code) {
    MutexLock lock(mutex_);
    fail_at_ = position;
    fail_code_ = code;
  }
  int held() const {
    MutexLock lock(mutex_);
    return held_;
  }

  // Before a token of this position is sampled: OK to go on.
  grpc::Status Pass(uint32_t position, const StopRequested& cancelled) {
    MutexLock lock(mutex_);
    const bool held = Holds(position);
    held_ += held ? 1 : 0;
    while (Holds(position) && !cancelled()) changed_.WaitFor(mutex_, kLook);
    held_ -= held ? 1 : 0;
    if (cancelled()) return grpc::Status::CANCELLED;
    if (!fail_at_ || position < *fail_at_) return grpc::Status::OK;
    fail_at_.reset();
    return {static_cast<grpc::StatusCode>(fail_code_), "as the test asked"};
  }

 private:
  bool Holds(uint32_t position) const REQUIRES(mutex_) { return hold_at_ && position >= *hold_at_; }

  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<uint32_t> hold_at_ GUARDED_BY(mutex_);
  std::optional<uint32_t> fail_at_ GUARDED_BY(mutex_);
  int fail_code_ GUARDED_BY(mutex_) = 0;
  int held_ GUARDED_BY(mutex_) = 0;
};

template <class Request>
std::vector<FakeChoice> ChoicesOf(const Request& request) {
  const std::vector<uint32_t> tokens(request.tokens().begin(), request.tokens().end());
  const v1::SamplingSpec& sampling = request.sampling();
  std::vector<FakeChoice> choices;
  for (uint32_t i = 0; i < sampling.choices(); ++i) {
    choices.emplace_back(tokens, request.prompt_tokens(), sampling, sampling.first_choice() + i);
  }
  return choices;
}

// The sessions of one stream, each on a thread of its own. What it was made on: the stream's
// thread.
class SessionThreads {
 public:
  using Stream = grpc::ServerReaderWriter<v1::DecodeEvents, v1::DecodeCommands>;
  // Numbers what is said; false when nobody hears it any more.
  using Say = std::function<bool(v1::DecodeEvents& events)>;
  using Body = std::function<grpc::Status(const Say& say, const StopRequested& called_off)>;

  explicit SessionThreads(Stream& stream) : stream_(stream) {}
  // Calls off and waits.
  ~SessionThreads() {
    for (auto& [number, session] : sessions_) session->called_off = true;
    for (auto& [number, session] : sessions_) session->thread.join();
  }
  SessionThreads(const SessionThreads&) = delete;
  SessionThreads& operator=(const SessionThreads&) = delete;

  void Start(uint64_t number, Body body) {
    JoinEnded();
    auto session = std::make_unique<Session>();
    session->thread = std::thread([this, number, &session = *session, body = std::move(body)] {
      const Say say = [&](v1::DecodeEvents& events) { return Write(number, session, events); };
      const grpc::Status status = body(say, [&session] { return session.called_off.load(); });
      v1::DecodeEvents last;
      last.add_ends()->set_code(static_cast<uint32_t>(status.error_code()));
      last.mutable_ends(0)->set_message(status.error_message());
      Write(number, session, last);
      session.ended = true;
    });
    sessions_.emplace(number, std::move(session));
  }

  void CancelSession(uint64_t number) {
    const auto found = sessions_.find(number);
    if (found != sessions_.end()) found->second->called_off = true;
  }

 private:
  struct Session {
    std::atomic<bool> called_off{false};
    std::atomic<bool> ended{false};
    std::thread thread;
  };

  bool Write(uint64_t number, const Session& session, v1::DecodeEvents& events) {
    for (auto& event : *events.mutable_events()) event.set_number(number);
    for (auto& token : *events.mutable_tokens()) token.set_number(number);
    for (auto& end : *events.mutable_ends()) end.set_number(number);
    MutexLock lock(mutex_);
    return !session.called_off && stream_.Write(events);
  }

  void JoinEnded() {
    std::erase_if(sessions_, [](auto& entry) {
      if (!entry.second->ended) return false;
      entry.second->thread.join();
      return true;
    });
  }

  Stream& stream_;
  Mutex mutex_;  // one message at a time
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
};

}  // namespace

class FakeWorker::Impl final : public v1::WorkerStatus::Service,
                               public v1::PrefillWorker::Service,
                               public v1::DecodeWorker::Service {
 public:
  explicit Impl(const FakeWorkerOptions& options)
      : state_every_(options.state_every), token_every_(options.token_every) {
    state_.set_worker_id(options.worker_id);
    state_.set_incarnation(RandomU64());
    state_.set_role(options.role);
    state_.set_phase(v1::WorkerState::READY);
    state_.set_model_fingerprint(options.model_fingerprint);
    state_.set_layout_fingerprint(options.layout_fingerprint);
    state_.set_block_tokens(options.block_tokens);
    state_.set_max_model_len(options.max_model_len);
    state_.set_numerics("exact");
    state_.set_kv_blocks_total(100'000);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.RegisterService(static_cast<v1::WorkerStatus::Service*>(this));
    builder.RegisterService(static_cast<v1::PrefillWorker::Service*>(this));
    builder.RegisterService(static_cast<v1::DecodeWorker::Service*>(this));
    server_ = builder.BuildAndStart();
    PENSTOCK_CHECK(server_ != nullptr, "a fake worker cannot listen");
    endpoint = fmt::format("127.0.0.1:{}", port);
  }

  void Kill() {
    {
      MutexLock lock(mutex_);
      dead_ = true;
      changed_.NotifyAll();
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  template <class Change>
  void ChangeState(const Change& change) {
    MutexLock lock(mutex_);
    change(state_);
    changed_.NotifyAll();
  }
  void SetSilent(bool silent) {
    MutexLock lock(mutex_);
    silent_ = silent;
    changed_.NotifyAll();
  }
  v1::SamplingSpec last_sampling() const {
    MutexLock lock(mutex_);
    return last_sampling_;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WorkerState>* writer) override {
    TimePoint next = std::chrono::steady_clock::now();
    std::string sent;
    while (!context->IsCancelled()) {
      std::optional<v1::WorkerState> state;
      {
        MutexLock lock(mutex_);
        if (dead_) break;
        const TimePoint now = std::chrono::steady_clock::now();
        const bool due = now >= next || state_.SerializeAsString() != sent;
        if (due && !silent_) {
          state = state_;
          sent = state_.SerializeAsString();
          next = now + state_every_;
        } else {
          changed_.WaitFor(mutex_, kLook);
        }
      }
      if (state && !writer->Write(*state)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status WatchBlocks(grpc::ServerContext* context, const v1::WatchBlocksRequest*,
                           grpc::ServerWriter<v1::BlockEvents>* writer) override {
    size_t sent = 0;
    const uint64_t life = [this] {
      MutexLock lock(mutex_);
      return block_streams_;
    }();
    for (uint64_t sequence = 0; !context->IsCancelled(); ++sequence) {
      v1::BlockEvents batch;
      {
        MutexLock lock(mutex_);
        const bool idle = sent == stored_.size() && block_streams_ == life;
        if (sequence > 0 && idle) changed_.WaitFor(mutex_, std::chrono::milliseconds(100));
        if (dead_ || block_streams_ != life) break;
        batch.set_incarnation(state_.incarnation());
        for (; sent < stored_.size(); ++sent) {
          v1::BlocksStored& stored = *batch.add_events()->mutable_stored();
          stored.set_ids(stored_[sent]);
          stored.set_tier(v1::DEVICE);
        }
      }
      batch.set_sequence(sequence);
      batch.set_snapshot(sequence == 0);
      if (!writer->Write(batch)) break;
    }
    return grpc::Status::OK;
  }

  void Store(std::span<const BlockId> ids) {
    MutexLock lock(mutex_);
    stored_.emplace_back(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
    changed_.NotifyAll();
  }

  void DropBlockStreams() {
    MutexLock lock(mutex_);
    ++block_streams_;
    changed_.NotifyAll();
  }

  grpc::Status Prefill(grpc::ServerContext* context, const v1::PrefillRequest* request,
                       grpc::ServerWriter<v1::PrefillEvent>* writer) override {
    const StopRequested gone = [context] { return context->IsCancelled(); };
    return Count(gone, request->sampling(), [&](const StopRequested& cancelled) {
      std::vector<FakeChoice> choices = ChoicesOf(*request);
      grpc::Status status = script.Pass(choices.front().position(), cancelled);
      if (!status.ok()) return status;
      v1::PrefillEvent first;
      for (FakeChoice& choice : choices) *first.mutable_first()->add_tokens() = choice.Next();
      first.mutable_first()->set_computed_tokens(request->tokens_size());
      writer->Write(first);
      v1::PrefillEvent done;
      done.mutable_handoff()->set_kv_bytes(64 * request->tokens_size());
      done.mutable_handoff()->set_transport("none");
      writer->Write(done);
      return grpc::Status::OK;
    });
  }

  grpc::Status Sessions(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::DecodeEvents, v1::DecodeCommands>* stream) override {
    SessionThreads sessions(*stream);
    v1::DecodeCommands commands;
    while (stream->Read(&commands)) {
      for (const v1::DecodeCommand& command : commands.commands()) {
        if (command.has_cancel()) {
          sessions.CancelSession(command.number());
        } else {
          sessions.Start(command.number(), [this, context, request = command.open()](
                                               const SessionThreads::Say& say,
                                               const StopRequested& called_off) {
            return Decode(request, say, [&] { return called_off() || context->IsCancelled(); });
          });
        }
      }
    }
    return grpc::Status::OK;
  }

  // One session.
  grpc::Status Decode(const v1::DecodeRequest& request, const SessionThreads::Say& say,
                      const StopRequested& gone) {
    return Count(gone, request.sampling(), [&](const StopRequested& cancelled) {
      v1::DecodeEvents admitted;
      admitted.add_events()->mutable_admitted();
      admitted.add_events()->mutable_committed();
      say(admitted);
      std::vector<FakeChoice> choices = ChoicesOf(request);
      for (FakeChoice& choice : choices) choice.Next();  // the prefill worker's
      // Answers that began together do not go on in step, as those of many workers would not.
      if (token_every_ > Duration::zero() && !choices.front().ended()) {
        std::this_thread::sleep_for(token_every_ * (RandomU64() % 1024) / 1024);
      }
      bool going_on = true;
      while (going_on) {
        going_on = false;
        for (FakeChoice& choice : choices) {
          if (choice.ended()) continue;
          if (token_every_ > Duration::zero()) std::this_thread::sleep_for(token_every_);
          grpc::Status status = script.Pass(choice.position(), cancelled);
          if (!status.ok()) return status;
          v1::DecodeEvents sampled;
          *sampled.add_tokens()->mutable_token() = choice.Next();
          if (!say(sampled)) return grpc::Status::CANCELLED;
          going_on = true;
        }
      }
      return grpc::Status::OK;
    });
  }

  std::string endpoint;
  Script script;
  std::atomic<int> calls{0};
  std::atomic<int> open_calls{0};
  std::atomic<int> cancelled_calls{0};

 private:
  template <class Body>
  grpc::Status Count(const StopRequested& gone, const v1::SamplingSpec& sampling,
                     const Body& body) {
    {
      MutexLock lock(mutex_);
      last_sampling_ = sampling;
    }
    ++open_calls;
    ++calls;
    grpc::Status status = body(gone);
    if (gone()) ++cancelled_calls;
    --open_calls;
    return status;
  }

  const Duration state_every_;
  const Duration token_every_;
  mutable Mutex mutex_;
  CondVar changed_;
  v1::WorkerState state_ GUARDED_BY(mutex_);
  v1::SamplingSpec last_sampling_ GUARDED_BY(mutex_);
  bool silent_ GUARDED_BY(mutex_) = false;
  std::vector<std::string> stored_ GUARDED_BY(mutex_);  // ids, by event
  uint64_t block_streams_ GUARDED_BY(mutex_) = 0;       // counts how often they were dropped
  bool dead_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Server> server_;
};

FakeWorker::FakeWorker(const FakeWorkerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
FakeWorker::~FakeWorker() { Kill(); }

const std::string& FakeWorker::endpoint() const { return impl_->endpoint; }
void FakeWorker::HoldAt(uint32_t position) { impl_->script.HoldAt(position); }
void FakeWorker::Release() { impl_->script.Release(); }
void FakeWorker::FailAt(uint32_t position, int code) { impl_->script.FailAt(position, code); }
void FakeWorker::SetPhase(v1::WorkerState::Phase phase) {
  impl_->ChangeState([phase](v1::WorkerState& state) { state.set_phase(phase); });
}
void FakeWorker::SetWaiting(uint32_t requests) {
  impl_->ChangeState([requests](v1::WorkerState& state) { state.set_waiting(requests); });
}
void FakeWorker::SetSilent(bool silent) { impl_->SetSilent(silent); }
void FakeWorker::Store(std::span<const BlockId> ids) { impl_->Store(ids); }
void FakeWorker::DropBlockStreams() { impl_->DropBlockStreams(); }
void FakeWorker::Kill() { impl_->Kill(); }
int FakeWorker::calls() const { return impl_->calls; }
int FakeWorker::open_calls() const { return impl_->open_calls; }
int FakeWorker::cancelled_calls() const { return impl_->cancelled_calls; }
int FakeWorker::held_calls() const { return impl_->script.held(); }
v1::SamplingSpec FakeWorker::last_sampling() const { return impl_->last_sampling(); }

}  // namespace penstock
