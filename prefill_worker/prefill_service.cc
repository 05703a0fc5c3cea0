#include "prefill_worker/prefill_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/log/log.h"
#include "base/mutex.h"
#include "base/rpc/event_stream.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "kvstore/handoff/handoff_types.h"
#include "kvstore/names/kv_policy.h"
#include "proto/worker.grpc.pb.h"
#include "worker/engine/page_selection.h"
#include "worker/handoff/handoff_report.h"

namespace penstock {
namespace {

constexpr uint32_t kScoreTopMax = 20;  // alternatives of each token of the prompt

TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24)) return TimePoint::max();
  return clock.Now() + std::chrono::duration_cast<Duration>(left);
}

class PrefillCall final : public EventStream<v1::PrefillEvent>, public PrefillSink {
 public:
  explicit PrefillCall(const PrefillBackend& backend) : backend_(backend) {}

  void Begin(const grpc::CallbackServerContext& context, const v1::PrefillRequest& request) {
    trace_ = TraceOf(context.client_metadata());
    name_ = {.request = request.request_id(), .trace = trace_.trace_id};
    const absl::Status status = TryBegin(context, request);
    if (!status.ok()) EndWith(status);
  }

  void OnFirst(v1::FirstTokens first, bool decode_follows) override {
    LogRequest(LogLevel::kDebug, name_.tag(), "prefill_computed",
               {{"computed", first.computed_tokens()},
                {"cached", first.cached_tokens()},
                {"queue_ms", first.queue_ms()},
                {"prefill_ms", first.prefill_ms()}});
    v1::PrefillEvent event;
    *event.mutable_first() = std::move(first);
    Push(std::move(event));
    // The handoff is not ended here: the decode worker would report that to the router, where it
    // could arrive before these tokens and count as a failure. The router has its answer and ends
    // the decode session, and that ends the handoff.
    if (!decode_follows) EndWith(absl::OkStatus());
  }

  void OnScores(v1::PromptScores scores) override {
    v1::PrefillEvent event;
    *event.mutable_scores() = std::move(scores);
    Push(std::move(event));
  }

  void OnHiddenState(v1::HiddenState state) override {
    v1::PrefillEvent event;
    *event.mutable_hidden_state() = std::move(state);
    Push(std::move(event));
  }

  void OnFailed(absl::Status status) override {
    EndWith(status);
    backend_.sender.Cancel(key_, status);
  }

  void OnCancel() override {
    const absl::Status why = Cancelled("the request was cancelled, or its deadline has passed");
    EndWith(why);
    if (!begun_) return;
    StopWork();
    backend_.sender.Cancel(key_, why);
  }

 private:
  void EndWith(const absl::Status& status) {
    if (!End(ToGrpcStatus(status))) return;
    LogRequest(LogLevel::kDebug, name_.tag(), "prefill_ended",
               {{"status", absl::StatusCodeToString(status.code())}, {"error", Message(status)}});
  }

  absl::Status TryBegin(const grpc::CallbackServerContext& context,
                        const v1::PrefillRequest& request) {
    ASSIGN_OR_RETURN(pass_, backend_.gate.Enter(PlannedBy(request)));
    key_ = HandoffKeyOf(request.key());
    ASSIGN_OR_RETURN(claim_, backend_.sender.Claim(key_));
    RETURN_IF_ERROR(CheckTokens(request, backend_.limits));
    PrefillJob job{
        .key = key_,
        .name = name_,
        .trace = trace_,
        .tokens = {request.tokens().begin(), request.tokens().end()},
        .prompt = {},
        .pins = PinsOf(request),
        .prompt_tokens = request.prompt_tokens(),
        .sampling = {},
        .stop = MakeStopRule(request.sampling(), backend_.limits.max_position -
                                                     static_cast<int32_t>(request.prompt_tokens())),
        .first_choice = request.sampling().first_choice(),
        .choices = request.sampling().choices(),
        .candidates = BeamCandidates(request.sampling()),
        .hidden_state = request.hidden_state(),
        .hidden_mean = request.hidden_state() && request.hidden_mean(),
        .arrival = backend_.clock.Now(),
        .deadline = DeadlineOf(context, backend_.clock),
        .sink = Self()};
    if (request.has_scoring()) {
      job.score_top = request.scoring().top_logprobs();
      if (*job.score_top > kScoreTopMax) {
        return InvalidArgument("scoring.top_logprobs is {}; the limit is {}", *job.score_top,
                               kScoreTopMax);
      }
    }
    ASSIGN_OR_RETURN(job.eviction,
                     backend_.evictions.Take(request.kv_policy(), request.prompt_tokens(),
                                             static_cast<uint32_t>(request.tokens_size())));
    if (job.eviction && (job.score_top || job.hidden_state)) {
      return InvalidArgument(
          "kv_policy is {}, which cannot be combined with scoring or hidden_state",
          request.kv_policy());
    }
    ASSIGN_OR_RETURN(job.sampling, ToSamplingParams(request.sampling(), backend_.limits.vocab));
    ASSIGN_OR_RETURN(const std::optional<KvSelection> selection,
                     backend_.selections.Take(request.kv_policy()));
    const int32_t block_tokens = backend_.limits.layout.block_tokens;
    job.selection = PageSelectionOf(selection, block_tokens, request.prompt_tokens());
    job.prompt = backend_.cache.NameBlocks(request.cache_salt(), job.tokens);
    DropSelectedNames(job.prompt, job.selection, block_tokens);
    RETURN_IF_ERROR(TakeParts(request, job));
    job.prompt.tenant = request.tenant_id();
    LogRequest(LogLevel::kDebug, name_.tag(), "prefill_taken",
               {{"handoff", HandoffKeyText(key_)},
                {"tokens", request.tokens_size()},
                {"to", request.decode_endpoint()}});
    RETURN_IF_ERROR(StartHandoff(request, job));
    begun_ = true;
    if (request.sampling().grammar().empty()) return Proceed(std::move(job), request.peer());
    AwaitGrammar(request, std::move(job));
    return absl::OkStatus();
  }

  // The parts of a prompt that is blended. With 100 % the prompt is an exact one.
  absl::Status TakeParts(const v1::PrefillRequest& request, PrefillJob& job) {
    ASSIGN_OR_RETURN(const std::optional<KvBlend> blend, backend_.blends.Take(request.kv_policy()));
    if (!blend && request.blend_parts_size() > 0) {
      return InvalidArgument(
          "blend_parts has {} entries, and kv_policy is {}, which blends nothing",
          request.blend_parts_size(), KvPolicyName(request.kv_policy()));
    }
    if (!blend) return absl::OkStatus();
    if (job.score_top || job.hidden_state) {
      return InvalidArgument(
          "kv_policy is {}, which cannot be combined with scoring or hidden_state",
          request.kv_policy());
    }
    const int32_t block_tokens = backend_.limits.layout.block_tokens;
    const std::vector<uint32_t> bounds(request.blend_parts().begin(), request.blend_parts().end());
    ASSIGN_OR_RETURN(job.parts, NameParts(backend_.cache, request.cache_salt(), job.tokens,
                                          job.prompt_tokens, bounds, block_tokens));
    job.parts->blend = *blend;
    job.parts->deviation_max = backend_.blends.deviation_max();
    for (BlendPart& part : job.parts->parts) part.prompt.tenant = request.tenant_id();
    DropBlendedNames(job.prompt, *job.parts, block_tokens);
    if (blend->percent == 100) job.parts.reset();
    return absl::OkStatus();
  }

  // The prompt waits for its grammar here, so that the engine never does.
  void AwaitGrammar(const v1::PrefillRequest& request, PrefillJob job) {
    auto waiting = std::make_shared<PrefillJob>(std::move(job));
    std::vector<uint32_t> stop_ids = waiting->stop.stop_token_ids;
    backend_.grammars.Prepare(request.sampling().grammar(), std::move(stop_ids),
                              [call = Self(), waiting,
                               peer = request.peer()](absl::StatusOr<GrammarHost::Source> source) {
                                if (!source.ok()) return call->OnFailed(source.status());
                                waiting->sampling.constraint = *std::move(source);
                                const absl::Status proceeded =
                                    call->Proceed(std::move(*waiting), peer);
                                if (!proceeded.ok()) call->EndWith(proceeded);
                              });
  }

  absl::Status Proceed(PrefillJob job, const v1::PeerPrefix& peer) {
    // With a window the last blocks of a prefix are enough, which no reader asks for yet.
    const bool reads =
        backend_.limits.layout.window == 0 && backend_.cache.keeps_blocks() && !job.parts;
    if (peer.blocks() > 0 && reads) {
      ReadPrefix(std::move(job), peer);
      return absl::OkStatus();
    }
    if (peer.blocks() > 0) job.peer.emplace().set_outcome(v1::PeerRead::REFUSED);
    absl::Status submitted = Submit(std::move(job));
    if (!submitted.ok()) backend_.sender.Cancel(key_, submitted);
    return submitted;
  }

  // Reads a part of the prefix from another worker, then submits the job to compute the rest.
  void ReadPrefix(PrefillJob job, const v1::PeerPrefix& peer) {
    auto read = backend_.reader.Start(std::move(job), peer, [call = Self()](PrefillJob back) {
      const absl::Status submitted = call->Submit(std::move(back));
      if (!submitted.ok()) call->OnFailed(submitted);
    });
    bool stopped = false;
    {
      MutexLock lock(mutex_);
      stopped = stopped_;
      read_ = read;
    }
    if (stopped) read->Cancel();
  }

  // Under the lock, so that the engine gets the job before its cancel, or does not get it at all.
  absl::Status Submit(PrefillJob job) {
    MutexLock lock(mutex_);
    if (stopped_) return absl::OkStatus();
    return backend_.engine.Submit(std::move(job));
  }

  void StopWork() {
    std::shared_ptr<PrefixRead> read;
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      read = std::exchange(read_, nullptr);
    }
    if (read != nullptr) read->Cancel();
    backend_.engine.Cancel(key_);
  }

  // Blocks here are exact and named so. Blocks that arrive by a lossy codec have other names on the
  // decode worker.
  BlockId DecodeSideBlockId(const v1::PrefillRequest& request, const PrefillJob& job) const {
    const std::string provenance = ProvenanceOf(request.kv_policy());
    if (provenance.empty()) return job.prompt.whole;
    return backend_.cache.NameBlocks(request.cache_salt(), job.tokens, provenance).whole;
  }

  absl::Status StartHandoff(const v1::PrefillRequest& request, const PrefillJob& job) {
    ASSIGN_OR_RETURN(std::vector<KvCodecSpec> lossy, backend_.lossy.AllowedBy(request.kv_policy()));
    const BlockId whole = DecodeSideBlockId(request, job);
    offered_at_ = backend_.clock.Now();  // the callbacks read it
    auto channel = backend_.handoffs.Open(key_, request.decode_endpoint(), trace_);
    absl::Status started = backend_.sender.Start(
        {.key = key_,
         .tokens = static_cast<uint32_t>(job.tokens.size()) -
                   EvictedTokens(request.kv_policy(), request.prompt_tokens(),
                                 static_cast<uint32_t>(job.tokens.size())),
         .prompt_id = std::string(whole.bytes.begin(), whole.bytes.end()),
         .lossy = std::move(lossy),
         .channel = channel,
         .on_committed = [call = Self()](const KvSendStats& stats) { call->OnCommitted(stats); },
         .on_failed = [call = Self()](const absl::Status& status) { call->OnLost(status); },
         .on_released = {},
         .on_credited = [&engine = backend_.engine] { engine.OnCredited(); }});
    if (!started.ok()) channel->Close();
    return started;
  }

  void OnCommitted(const KvSendStats& stats) {
    backend_.transfers.OnCommitted(stats, backend_.clock.Now() - offered_at_);
    v1::PrefillEvent event;
    *event.mutable_handoff() = HandoffDoneOf(stats);
    Push(std::move(event));
    LogHandedOff(name_.tag(), stats);
    EndWith(absl::OkStatus());
  }

  // The handoff has failed, so the KV that is still to be computed has no target.
  void OnLost(const absl::Status& status) {
    backend_.transfers.OnFailed(status);
    EndWith(status);
    if (begun_) StopWork();
  }

  std::shared_ptr<PrefillCall> Self() {
    return std::static_pointer_cast<PrefillCall>(shared_from_this());
  }

  const PrefillBackend& backend_;
  RoleGate::Pass pass_;
  TraceContext trace_;  // constant after Begin, as the name is
  RequestName name_;
  HandoffKey key_;
  HandoffClaims::Claim claim_;  // the engine and the sender hold this call while they work for it
  TimePoint offered_at_;
  std::atomic<bool> begun_{false};
  Mutex mutex_;
  std::shared_ptr<PrefixRead> read_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace

class PrefillService::Impl final : public v1::PrefillWorker::CallbackService {
 public:
  explicit Impl(const PrefillBackend& given) : backend(given) {}

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(grpc::CallbackServerContext* context,
                                                      const v1::PrefillRequest* request) override {
    auto call = std::make_shared<PrefillCall>(backend);
    call->HoldForCall();
    call->Begin(*context, *request);
    return call.get();
  }

  const PrefillBackend backend;
};

PrefillService::PrefillService(const PrefillBackend& backend)
    : impl_(std::make_unique<Impl>(backend)) {}
PrefillService::~PrefillService() = default;
grpc::Service* PrefillService::service() { return impl_.get(); }

}  // namespace penstock
