#include "decode_worker/decode_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "base/log/log.h"
#include "base/mutex.h"
#include "base/rpc/timer.h"
#include "base/trace_context.h"
#include "decode_worker/move_call.h"
#include "decode_worker/session_streams.h"
#include "kvstore/handoff/handoff_types.h"
#include "kvstore/names/kv_policy.h"
#include "proto/worker.grpc.pb.h"
#include "worker/engine/page_selection.h"

namespace penstock {
namespace {

struct Shared {
  explicit Shared(const DecodeBackend& given) : backend(given) {}
  const DecodeBackend backend;
  std::atomic<int64_t> calls{0};
};

// Shared by its stream, by the receiver until the KV has arrived, and then by the engine.
class DecodeSessionCall final : public StreamedSession,
                                public DecodeSink,
                                public std::enable_shared_from_this<DecodeSessionCall> {
 public:
  DecodeSessionCall(Shared& shared, SessionWriter writer)
      : shared_(shared), writer_(std::move(writer)) {
    ++shared_.calls;
  }
  ~DecodeSessionCall() override { --shared_.calls; }

  void Begin(const v1::DecodeRequest& request) override {
    name_ = {.request = request.request_id(),
             .trace = ParseTrace({.parents = {request.traceparent()}, .states = {}}).trace_id};
    const absl::Status status = TryBegin(request);
    if (!status.ok()) return EndWith(status, Sending::kNow);
    SetTimeout(request.timeout_ms());
  }

  void OnToken(v1::TokenOut token) override {
    if (tokens_++ == 0) {
      LogRequest(LogLevel::kDebug, name_.tag(), "decode_first_step",
                 {{"choice", token.choice()}, {"position", token.position()}});
    }
    writer_.WriteToken(token);
  }

  void OnFirst(v1::FirstTokens first) override {
    v1::DecodeEvent event;
    *event.mutable_first() = std::move(first);
    writer_.Write(std::move(event), Sending::kWithStep);
  }

  void OnEnd(absl::Status status) override {
    EndWith(status, Sending::kWithStep);
    shared_.backend.receiver.OnBlocksFreed();
  }

  void OnCancelled(const absl::Status& why) override { Abandon(why); }

 private:
  void EndWith(const absl::Status& status, Sending when) {
    if (!writer_.End(status, when)) return;
    LogRequest(LogLevel::kDebug, name_.tag(), "decode_ended",
               {{"status", absl::StatusCodeToString(status.code())},
                {"error", Message(status)},
                {"tokens", tokens_.load()}});
  }

  // Ends the session and releases all its blocks.
  void Abandon(const absl::Status& why) {
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
    }
    EndWith(why, Sending::kNow);
    shared_.backend.receiver.Cancel(key_, why);
    shared_.backend.engine.Cancel(key_);
  }

  void SetTimeout(uint32_t timeout_ms) {
    if (timeout_ms == 0) return;
    MutexLock lock(mutex_);
    timeout_.Set(std::chrono::milliseconds(timeout_ms), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->Abandon(DeadlineExceeded("the request's deadline has passed"));
      }
    });
  }

  absl::Status TryBegin(const v1::DecodeRequest& request) {
    const DecodeBackend& backend = shared_.backend;
    key_ = HandoffKeyOf(request.key());
    ASSIGN_OR_RETURN(pass_, backend.gate.Enter(PlannedBy(request)));
    ASSIGN_OR_RETURN(claim_, backend.receiver.Claim(key_));
    if (shared_.calls > backend.sessions_max) {
      return ResourceExhausted(
          "{} sessions are open here, and the limit is {}; retry later or elsewhere",
          shared_.calls.load(), backend.sessions_max);
    }
    RETURN_IF_ERROR(CheckTokens(request, backend.limits));
    job_.key = key_;
    job_.tokens.assign(request.tokens().begin(), request.tokens().end());
    job_.prompt_tokens = request.prompt_tokens();
    job_.stop = MakeStopRule(request.sampling(), backend.limits.max_position -
                                                     static_cast<int32_t>(request.prompt_tokens()));
    job_.beams = BeamRulesOf(request.sampling(), job_.stop);
    ASSIGN_OR_RETURN(job_.sampling, ToSamplingParams(request.sampling(), backend.limits.vocab));
    const auto tokens = static_cast<uint32_t>(request.tokens_size());
    // The last step computes the last token but one.
    const auto before_last =
        request.prompt_tokens() + static_cast<uint32_t>(std::max(job_.stop.tokens_max - 2, 0));
    ASSIGN_OR_RETURN(job_.eviction,
                     backend.evictions.Take(request.kv_policy(), request.prompt_tokens(),
                                            std::max(tokens, before_last)));
    const std::optional<KvEviction>& eviction = job_.eviction;
    if (eviction) {
      job_.evicted = static_cast<int32_t>(eviction->EvictedAt(request.prompt_tokens(), tokens));
    }
    if (eviction && request.prefill()) {
      return InvalidArgument(
          "kv_policy is {}, and decode workers do not evict prompts; prefill must be false",
          request.kv_policy());
    }
    if (eviction && eviction->EvictsAnswer() && job_.beams) {
      return InvalidArgument("kv_policy is {}, which cannot be combined with a beam search",
                             request.kv_policy());
    }
    const int32_t block_tokens = backend.admission.layout.block_tokens;
    ASSIGN_OR_RETURN(const std::optional<KvSelection> selection,
                     backend.selections.Take(request.kv_policy()));
    job_.selection = PageSelectionOf(selection, block_tokens, request.prompt_tokens());
    ASSIGN_OR_RETURN(const std::optional<KvBlend> blend, backend.blends.Take(request.kv_policy()));
    job_.blended = blend.has_value();
    if (blend && request.prefill()) {
      return InvalidArgument(
          "kv_policy is {}, and decode workers do not blend prompts; prefill must be false",
          request.kv_policy());
    }
    const uint32_t choices =
        job_.beams ? static_cast<uint32_t>(job_.beams->width) : request.sampling().choices();
    DecodeNeed need =
        NeedOf(backend.admission.layout,
               {.tokens = request.tokens_size() - job_.evicted,
                .more = job_.stop.tokens_max - (request.tokens_size() - request.prompt_tokens()),
                .choices = choices,
                .limit = eviction && eviction->EvictsAnswer() ? eviction->limit() : 0,
                .step_tokens = backend.admission.step_tokens,
                .chunk_tokens = request.prefill() ? backend.admission.chunk_tokens : 0});
    if (eviction || blend) need.held_max = 0;
    if (need.blocks_max > backend.limits.blocks_total) {
      return ResourceExhausted(
          "the prompt and {} answers of up to {} tokens need {} KV blocks and this worker has {}; "
          "lower max_tokens or n, or start the worker with more --kv_memory",
          choices, job_.stop.tokens_max, need.blocks_max, backend.limits.blocks_total);
    }
    if (need.rows > backend.admission.rows_total) {
      return ResourceExhausted(
          "the prompt and {} answers of up to {} tokens need {} rows for the layers with a window, "
          "and this worker has {}; lower n or max_tokens, or start the worker with more "
          "--kv_memory",
          choices, job_.stop.tokens_max, need.rows, backend.admission.rows_total);
    }
    alone_ = request.prefill_alone();
    if (request.prefill()) {
      job_.prefill = LocalPrefill{.cached = 0,
                                  .first_choice = request.sampling().first_choice(),
                                  .choices = request.sampling().choices(),
                                  .arrival = backend.clock.Now()};
    }
    ASSIGN_OR_RETURN(lossy_, backend.lossy.AllowedBy(request.kv_policy()));
    // KV that is computed behind lossy KV is not exact either, so all blocks get the lossy names.
    job_.prompt = backend.admission.cache.NameBlocks(request.cache_salt(), job_.tokens,
                                                     ProvenanceOf(request.kv_policy()));
    DropSelectedNames(job_.prompt, job_.selection, block_tokens);
    job_.prompt.tenant = request.tenant_id();
    job_.pins = PinsOf(request);
    admission_.emplace(backend.admission, need);
    const std::string& grammar = request.sampling().grammar();
    SetAwaitsGrammar(!grammar.empty());
    std::vector<uint32_t> stop_ids = job_.stop.stop_token_ids;
    RETURN_IF_ERROR(Expect(
        need.blocks_now,
        {.first_choice = request.sampling().first_choice(),
         .choices = job_.beams ? BeamCandidates(request.sampling()) : request.sampling().choices(),
         .vocab = static_cast<uint32_t>(backend.limits.vocab)}));
    if (grammar.empty()) return absl::OkStatus();
    backend.grammars.Prepare(
        grammar, std::move(stop_ids),
        [self = shared_from_this()](absl::StatusOr<GrammarHost::Source> source) {
          self->OnGrammar(std::move(source));
        });
    return absl::OkStatus();
  }

  void SetAwaitsGrammar(bool awaits) {
    MutexLock lock(mutex_);
    awaits_grammar_ = awaits;
  }

  // The grammar is compiled while the KV is on its way; the last of the two starts the decoding.
  void OnGrammar(absl::StatusOr<GrammarHost::Source> source) {
    if (!source.ok()) return Abandon(source.status());
    MutexLock lock(mutex_);
    constraint_ = *std::move(source);
    awaits_grammar_ = false;
    if (has_kv_) AddToEngine();
  }

  absl::Status Expect(int64_t blocks, const FirstTokensRule& first) {
    const std::shared_ptr<DecodeSessionCall> self = shared_from_this();
    std::function<void(KvAdmission)> on_blocks;
    if (job_.prefill) on_blocks = [self](KvAdmission given) { self->OnBlocks(std::move(given)); };
    return shared_.backend.receiver.Expect(
        {.name = name_,
         .key = key_,
         .tokens = static_cast<uint32_t>(job_.tokens.size()) - static_cast<uint32_t>(job_.evicted),
         .prompt_id = std::string(job_.prompt.whole.bytes.begin(), job_.prompt.whole.bytes.end()),
         .blocks = blocks,
         .lossy = lossy_,
         .first = first,
         .admit = [self] { return self->Admit(); },
         .on_admitted = [self] { self->OnAdmitted(); },
         .on_blocks = std::move(on_blocks),
         .on_committed = [self](ReceivedKv kv) { self->OnCommitted(std::move(kv)); },
         .on_failed = [self](const absl::Status& status) { self->OnLost(status); }});
  }

  // Called under the receiver's lock, so one call at a time, and before the KV arrives.
  std::optional<KvAdmission> Admit() {
    const DecodeBackend& backend = shared_.backend;
    auto admitted =
        admission_->Try(job_.prompt, [&receiver = backend.receiver] { receiver.OnBlocksFreed(); });
    if (!admitted) return std::nullopt;
    job_.access = admitted->blocks.access;
    job_.swap = std::move(admitted->swap);
    job_.exchanges = admitted->exchanges;
    return KvAdmission{.held = std::move(admitted->blocks.held),
                       .credit = std::move(admitted->blocks.credit)};
  }

  void OnAdmitted() {
    LogRequest(LogLevel::kDebug, name_.tag(), "decode_admitted",
               {{"handoff", HandoffKeyText(key_)}});
    v1::DecodeEvent event;
    event.mutable_admitted();
    writer_.Write(std::move(event), Sending::kNow);
  }

  // Computes the rest of the prompt here, unless it has become longer than the limit.
  void OnBlocks(KvAdmission given) {
    const DecodeBackend& backend = shared_.backend;
    const KvLayout& layout = backend.admission.layout;
    const auto tokens = static_cast<int64_t>(job_.tokens.size());
    const int64_t cached = static_cast<int64_t>(given.held.size()) * layout.block_tokens;
    if (tokens - cached > backend.local_prefill_max_tokens && !alone_) {
      given = {};
      backend.receiver.OnBlocksFreed();
      return EndWith(FailedPrecondition("{} of {} tokens are not cached here, and the limit "
                                        "(local_prefill_max_tokens) is {}; replan",
                                        tokens - cached, tokens, backend.local_prefill_max_tokens),
                     Sending::kNow);
    }
    OnAdmitted();
    job_.prefill->cached = static_cast<int32_t>(cached);
    job_.blocks = std::move(given.held);
    // A session that exchanges blocks takes those of a chunk when it computes it.
    const auto more = job_.exchanges > 0 ? 0 : layout.BlocksFor(tokens) - std::ssize(job_.blocks);
    for (BlockRef& block : given.credit.Take(more)) job_.blocks.push_back(std::move(block));
    job_.growth = std::move(given.credit);
    Start();
  }

  void OnLost(const absl::Status& status) {
    shared_.backend.received.OnFailed(status);
    EndWith(status, Sending::kNow);
  }

  void OnCommitted(ReceivedKv kv) {
    shared_.backend.received.OnCommitted();
    LogRequest(LogLevel::kDebug, name_.tag(), "kv_committed", {{"blocks", kv.blocks.size()}});
    v1::DecodeEvent event;
    event.mutable_committed();
    writer_.Write(std::move(event), Sending::kNow);
    job_.first = std::move(kv.first);
    job_.blocks = std::move(kv.blocks);
    job_.growth = std::move(kv.credit);
    Start();
  }

  void Start() {
    job_.sink = shared_from_this();
    // Under the lock, so that the engine gets the job before its cancel, or does not get it at all.
    MutexLock lock(mutex_);
    has_kv_ = true;
    if (!awaits_grammar_ || cancelled_) AddToEngine();
  }

  void AddToEngine() REQUIRES(mutex_) {
    if (cancelled_) {
      job_ = {};
      return;
    }
    job_.sampling.constraint = constraint_;
    shared_.backend.engine.Add(std::exchange(job_, {}));
  }

  Shared& shared_;
  const SessionWriter writer_;
  RoleGate::Pass pass_;
  RequestName name_;  // not changed once it has begun
  std::atomic<uint64_t> tokens_{0};
  HandoffKey key_;
  HandoffClaims::Claim claim_;  // the receiver and the engine hold this while they work for it
  DecodeJob job_;               // waits here for its KV
  std::optional<PendingAdmission> admission_;  // until the session has its blocks
  std::vector<KvCodecSpec> lossy_;             // codecs that the request allows
  bool alone_ = false;                         // of a local prefill: its limit does not hold
  Mutex mutex_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool awaits_grammar_ GUARDED_BY(mutex_) = false;
  bool has_kv_ GUARDED_BY(mutex_) = false;  // `job_` is complete but for its grammar
  GrammarHost::Source constraint_ GUARDED_BY(mutex_);
  Timer timeout_ GUARDED_BY(mutex_);
};

}  // namespace

class DecodeService::Impl final : public v1::DecodeWorker::CallbackService {
 public:
  explicit Impl(const DecodeBackend& backend)
      : shared_(backend),
        move_{.gate = backend.gate,
              .engine = backend.engine,
              .cache = backend.admission.cache,
              .sender = backend.sender,
              .handoffs = backend.handoffs,
              .sent = backend.sent,
              .clock = backend.clock,
              .limits = backend.limits,
              .moved = moved_} {}

  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Sessions(
      grpc::CallbackServerContext*) override {
    return streams_.Serve();
  }

  grpc::ServerWriteReactor<v1::PrefillEvent>* Move(grpc::CallbackServerContext* context,
                                                   const v1::MoveRequest* request) override {
    return ServeMove(move_, *context, *request);
  }

  SessionStreams& streams() { return streams_; }
  uint64_t moved() const { return moved_; }

 private:
  Shared shared_;
  SessionStreams streams_{[this](SessionWriter writer) {
    return std::make_shared<DecodeSessionCall>(shared_, std::move(writer));
  }};
  std::atomic<uint64_t> moved_{0};
  const MoveBackend move_;
};

DecodeService::DecodeService(const DecodeBackend& backend)
    : impl_(std::make_unique<Impl>(backend)) {}
DecodeService::~DecodeService() = default;
grpc::Service* DecodeService::service() { return impl_.get(); }
void DecodeService::OnStep() { impl_->streams().FlushStep(); }
void DecodeService::Stop() { impl_->streams().Stop(); }
uint64_t DecodeService::moved() const { return impl_->moved(); }

}  // namespace penstock
