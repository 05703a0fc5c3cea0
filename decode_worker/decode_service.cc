#include "decode_worker/decode_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/rpc_server.h"
#include "base/rpc_trace.h"
#include "decode_worker/move_call.h"
#include "kvstore/handoff_types.h"
#include "kvstore/kv_policy.h"
#include "proto/worker.grpc.pb.h"
#include "worker/event_stream.h"

namespace penstock {
namespace {

struct Shared {
  explicit Shared(const DecodeBackend& given) : backend(given) {}
  const DecodeBackend backend;
  std::atomic<int64_t> calls{0};
};

class DecodeCall final : public EventStream<v1::DecodeEvent>, public DecodeSink {
 public:
  explicit DecodeCall(Shared& shared) : shared_(shared) { ++shared_.calls; }
  ~DecodeCall() override { --shared_.calls; }

  void Begin(const grpc::CallbackServerContext& context, const v1::DecodeRequest& request) {
    name_ = {.request = request.request_id(), .trace = TraceOf(context.client_metadata()).trace_id};
    const absl::Status status = TryBegin(request);
    if (!status.ok()) EndWith(status);
  }

  void OnToken(v1::TokenOut token) override {
    if (tokens_++ == 0) {
      LogRequest(LogLevel::kDebug, name_.tag(), "decode_first_step",
                 {{"choice", token.choice()}, {"position", token.position()}});
    }
    v1::DecodeEvent event;
    *event.mutable_token() = std::move(token);
    Push(std::move(event));
  }

  void OnFirst(v1::FirstTokens first) override {
    v1::DecodeEvent event;
    *event.mutable_first() = std::move(first);
    Push(std::move(event));
  }

  void OnEnd(absl::Status status) override {
    EndWith(status);
    shared_.backend.receiver.OnBlocksFreed();
  }

  void OnCancel() override {
    const absl::Status why = Cancelled("the request was cancelled, or its deadline has passed");
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
    }
    EndWith(why);
    shared_.backend.receiver.Cancel(key_, why);
    shared_.backend.engine.Cancel(key_);
  }

 private:
  void EndWith(const absl::Status& status) {
    if (!End(ToGrpcStatus(status))) return;
    LogRequest(LogLevel::kDebug, name_.tag(), "decode_ended",
               {{"status", absl::StatusCodeToString(status.code())},
                {"error", Message(status)},
                {"tokens", tokens_.load()}});
  }

  absl::Status TryBegin(const v1::DecodeRequest& request) {
    const DecodeBackend& backend = shared_.backend;
    ASSIGN_OR_RETURN(pass_, backend.gate.Enter(request.role_epoch()));
    key_ = HandoffKeyOf(request.key());
    if (shared_.calls > backend.sessions_max) {
      return ResourceExhausted("{} sessions are open here, the limit is {}; retry",
                               shared_.calls.load(), backend.sessions_max);
    }
    RETURN_IF_ERROR(CheckTokens(request, backend.limits));
    job_.key = key_;
    job_.tokens.assign(request.tokens().begin(), request.tokens().end());
    job_.prompt_tokens = request.prompt_tokens();
    job_.stop = MakeStopRule(request.sampling(), backend.limits.max_position -
                                                     static_cast<int32_t>(request.prompt_tokens()));
    ASSIGN_OR_RETURN(job_.sampling, ToSamplingParams(request.sampling(), backend.limits.vocab));
    const DecodeNeed need =
        NeedOf(backend.door.layout, request.tokens_size(),
               job_.stop.tokens_max - (request.tokens_size() - request.prompt_tokens()),
               request.sampling().choices());
    if (need.blocks_most > backend.limits.blocks_total) {
      return ResourceExhausted(
          "the prompt and {} answers of up to {} tokens need {} KV blocks and this worker has {}: "
          "lower max_tokens or n, or start it with more --kv_memory",
          request.sampling().choices(), job_.stop.tokens_max, need.blocks_most,
          backend.limits.blocks_total);
    }
    if (request.prefill()) {
      job_.prefill = LocalPrefill{.cached = 0,
                                  .first_choice = request.sampling().first_choice(),
                                  .choices = request.sampling().choices(),
                                  .arrival = backend.clock.Now()};
    }
    ASSIGN_OR_RETURN(lossy_, backend.lossy.AllowedBy(request.kv_policy()));
    // What is computed behind KV that is not exact is not, either: all of it is named after that.
    job_.prompt = backend.door.cache.NameBlocks(request.cache_salt(), job_.tokens,
                                                ProvenanceOf(request.kv_policy()));
    job_.pins = PinsOf(request.pins());
    entry_.emplace(backend.door, need);
    return Expect(need.blocks_now);
  }

  absl::Status Expect(int64_t blocks) {
    const auto self = std::static_pointer_cast<DecodeCall>(shared_from_this());
    std::function<void(KvAdmission)> on_blocks;
    if (job_.prefill) on_blocks = [self](KvAdmission given) { self->OnBlocks(std::move(given)); };
    return shared_.backend.receiver.Expect(
        {.name = name_,
         .key = key_,
         .tokens = static_cast<uint32_t>(job_.tokens.size()),
         .prompt_id = std::string(job_.prompt.whole.bytes.begin(), job_.prompt.whole.bytes.end()),
         .blocks = blocks,
         .lossy = lossy_,
         .admit = [self] { return self->Admit(); },
         .on_admitted = [self] { self->OnAdmitted(); },
         .on_blocks = std::move(on_blocks),
         .on_committed = [self](ReceivedKv kv) { self->OnCommitted(std::move(kv)); },
         .on_failed = [self](const absl::Status& status) { self->OnLost(status); }});
  }

  // Under the receiver's lock, so one at a time, and before the KV comes.
  std::optional<KvAdmission> Admit() {
    const DecodeBackend& backend = shared_.backend;
    auto admitted =
        entry_->Try(job_.prompt, [&receiver = backend.receiver] { receiver.OnBlocksFreed(); });
    if (!admitted) return std::nullopt;
    job_.access = admitted->blocks.access;
    job_.swap = std::move(admitted->swap);
    return KvAdmission{.held = std::move(admitted->blocks.held),
                       .credit = std::move(admitted->blocks.credit)};
  }

  void OnAdmitted() {
    LogRequest(LogLevel::kDebug, name_.tag(), "decode_admitted",
               {{"handoff", HandoffKeyText(key_)}});
    v1::DecodeEvent event;
    event.mutable_admitted();
    Push(std::move(event));
  }

  // The prompt's rest is computed here, if it is not more than was thought.
  void OnBlocks(KvAdmission given) {
    const DecodeBackend& backend = shared_.backend;
    const KvLayout& layout = backend.door.layout;
    const auto tokens = static_cast<int64_t>(job_.tokens.size());
    const int64_t cached = static_cast<int64_t>(given.held.size()) * layout.block_tokens;
    if (tokens - cached > backend.prefill_most) {
      given = {};
      backend.receiver.OnBlocksFreed();
      return EndWith(FailedPrecondition(
          "{} of {} tokens are not cached here, and {} is the most that is computed here",
          tokens - cached, tokens, backend.prefill_most));
    }
    OnAdmitted();
    job_.prefill->cached = static_cast<int32_t>(cached);
    job_.blocks = std::move(given.held);
    const auto more = layout.BlocksFor(tokens) - static_cast<int64_t>(job_.blocks.size());
    for (BlockRef& block : given.credit.Take(more)) job_.blocks.push_back(std::move(block));
    job_.growth = std::move(given.credit);
    Start();
  }

  void OnLost(const absl::Status& status) {
    shared_.backend.transfers.OnFailed(status);
    EndWith(status);
  }

  void OnCommitted(ReceivedKv kv) {
    shared_.backend.transfers.OnCommitted();
    LogRequest(LogLevel::kDebug, name_.tag(), "kv_committed", {{"blocks", kv.blocks.size()}});
    v1::DecodeEvent event;
    event.mutable_committed();
    Push(std::move(event));
    job_.first = std::move(kv.first);
    job_.blocks = std::move(kv.blocks);
    job_.growth = std::move(kv.credit);
    Start();
  }

  void Start() {
    job_.sink = std::static_pointer_cast<DecodeCall>(shared_from_this());
    // Under the lock, so that the engine hears of the job before it hears of its cancel, or never.
    MutexLock lock(mutex_);
    if (cancelled_) {
      job_ = {};
    } else {
      shared_.backend.engine.Add(std::exchange(job_, {}));
    }
  }

  Shared& shared_;
  RoleGate::Pass pass_;
  RequestName name_;  // not changed once it has begun
  std::atomic<uint64_t> tokens_{0};
  HandoffKey key_;
  DecodeJob job_;                     // waits here for its KV
  std::optional<DecodeEntry> entry_;  // and here for its blocks
  std::vector<KvCodecSpec> lossy_;    // codecs that the request allows
  Mutex mutex_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace

class DecodeService::Impl final : public v1::DecodeWorker::CallbackService {
 public:
  explicit Impl(const DecodeBackend& backend)
      : shared_(backend),
        move_{.gate = backend.gate,
              .engine = backend.engine,
              .cache = backend.door.cache,
              .sending = backend.sending,
              .clock = backend.clock,
              .limits = backend.limits,
              .moved = moved_} {}

  grpc::ServerWriteReactor<v1::DecodeEvent>* Decode(grpc::CallbackServerContext* context,
                                                    const v1::DecodeRequest* request) override {
    auto call = std::make_shared<DecodeCall>(shared_);
    call->HoldForCall();
    call->Begin(*context, *request);
    return call.get();
  }

  grpc::ServerWriteReactor<v1::PrefillEvent>* Move(grpc::CallbackServerContext* context,
                                                   const v1::MoveRequest* request) override {
    return ServeMove(move_, *context, *request);
  }

  uint64_t moved() const { return moved_; }

 private:
  Shared shared_;
  std::atomic<uint64_t> moved_{0};
  const MoveBackend move_;
};

DecodeService::DecodeService(const DecodeBackend& backend)
    : impl_(std::make_unique<Impl>(backend)) {}
DecodeService::~DecodeService() = default;
grpc::Service* DecodeService::service() { return impl_.get(); }
uint64_t DecodeService::moved() const { return impl_->moved(); }

}  // namespace penstock
