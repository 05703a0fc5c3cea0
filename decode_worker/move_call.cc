#include "decode_worker/move_call.h"

#include <utility>

#include "base/log/log.h"
#include "base/mutex.h"
#include "base/rpc/event_stream.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "kvstore/handoff/handoff_types.h"
#include "kvstore/names/kv_policy.h"
#include "worker/handoff/handoff_report.h"

namespace penstock {
namespace {

class MoveCall final : public EventStream<v1::PrefillEvent>, public FreezeSink {
 public:
  MoveCall(const MoveBackend& backend, const v1::MoveRequest& request)
      : backend_(backend),
        key_(HandoffKeyOf(request.key())),
        freeze_{.freeze = key_, .key = HandoffKeyOf(request.source()), .choice = request.choice()} {
  }

  void Begin(const grpc::CallbackServerContext& context, const v1::MoveRequest& request) {
    trace_ = TraceOf(context.client_metadata());
    name_ = {.request = request.request_id(), .trace = trace_.trace_id};
    const absl::Status status = TryBegin(request);
    if (!status.ok()) EndWith(status);
  }

  void OnFrozen(std::vector<BlockRef> blocks) override {
    KvSender& sender = backend_.sender;
    sender.SendLayers(key_, {.first_layer = 0,
                             .last_layer = backend_.limits.layout.layers,
                             .first_token = 0,
                             .last_token = tokens_,
                             .blocks = blocks});
    sender.Finish(key_, {last_token_});
  }

  void OnRefused(absl::Status status) override { EndWith(status); }
  void OnCancel() override { EndWith(Cancelled("the move was cancelled, or has ended")); }

 private:
  absl::Status TryBegin(const v1::MoveRequest& request) {
    ASSIGN_OR_RETURN(pass_, backend_.gate.Enter(PlannedBy(request)));
    ASSIGN_OR_RETURN(claim_, backend_.sender.Claim(key_));
    RETURN_IF_ERROR(CheckTokens(request, backend_.limits));
    FreezeRequest freeze{.freeze = key_,
                         .key = freeze_.key,
                         .choice = freeze_.choice,
                         .tokens = {request.tokens().begin(), request.tokens().end()},
                         .prompt = {},
                         .last_token = request.last_token(),
                         .sink = Self()};
    // The same names as in the sequence's decode session. Moves use exact codecs only.
    freeze.prompt = backend_.cache.NameBlocks(request.cache_salt(), freeze.tokens,
                                              ProvenanceOf(request.kv_policy()));
    const auto tokens = static_cast<uint32_t>(request.tokens_size());
    tokens_ = tokens - EvictedTokens(request.kv_policy(), request.prompt_tokens(), tokens);
    last_token_.set_choice(request.choice());
    last_token_.set_position(tokens - request.prompt_tokens());
    last_token_.set_token(request.last_token());
    RETURN_IF_ERROR(StartHandoff(request, freeze.prompt));
    MutexLock lock(mutex_);
    if (over_) return absl::OkStatus();
    ordered_ = true;
    backend_.engine.Freeze(std::move(freeze));
    return absl::OkStatus();
  }

  absl::Status StartHandoff(const v1::MoveRequest& request, const PromptBlocks& prompt) {
    offered_at_ = backend_.clock.Now();  // the callbacks read it
    auto channel = backend_.handoffs.Open(key_, request.target_endpoint(), trace_);
    {
      MutexLock lock(mutex_);
      sending_ = true;
    }
    absl::Status started = backend_.sender.Start(
        {.key = key_,
         .tokens = tokens_,
         .prompt_id = std::string(prompt.whole.bytes.begin(), prompt.whole.bytes.end()),
         .channel = channel,
         .on_committed = [call = Self()](const KvSendStats& stats) { call->OnCommitted(stats); },
         .on_failed = [call = Self()](const absl::Status& status) { call->OnLost(status); },
         .on_released = [call = Self()] { call->OnReleased(); }});
    if (started.ok()) return started;
    channel->Close();
    MutexLock lock(mutex_);
    sending_ = false;
    return started;
  }

  // The call stays open and the choice frozen until the caller ends the call: the target may still
  // fail before its first message reaches the router.
  void OnCommitted(const KvSendStats& stats) {
    backend_.sent.OnCommitted(stats, backend_.clock.Now() - offered_at_);
    ++backend_.moved;
    v1::PrefillEvent event;
    *event.mutable_handoff() = HandoffDoneOf(stats);
    Push(std::move(event));
    LogHandedOff(name_.tag(), stats);
  }

  void OnLost(const absl::Status& status) {
    backend_.sent.OnFailed(status);
    EndWith(status);
  }

  void OnReleased() {
    MutexLock lock(mutex_);
    sending_ = false;
    UnfreezeIfDone();
  }

  void EndWith(const absl::Status& status) {
    End(ToGrpcStatus(status));
    if (!claim_.empty()) backend_.sender.Cancel(key_, status);  // else the key is another call's
    MutexLock lock(mutex_);
    over_ = true;
    UnfreezeIfDone();
  }

  // Lets the choice write into its last page again.
  void UnfreezeIfDone() REQUIRES(mutex_) {
    if (!over_ || sending_ || !ordered_) return;
    ordered_ = false;
    backend_.engine.Unfreeze(freeze_);
  }

  std::shared_ptr<MoveCall> Self() {
    return std::static_pointer_cast<MoveCall>(shared_from_this());
  }

  const MoveBackend& backend_;
  RoleGate::Pass pass_;
  TraceContext trace_;  // constant after Begin, as the name is
  RequestName name_;
  const HandoffKey key_;
  HandoffClaims::Claim claim_;
  const UnfreezeRequest freeze_;
  TimePoint offered_at_;
  uint32_t tokens_ = 0;
  v1::TokenOut last_token_;
  Mutex mutex_;
  bool sending_ GUARDED_BY(mutex_) = false;  // the sender may read pages
  bool ordered_ GUARDED_BY(mutex_) = false;  // the freeze is requested and not ended
  bool over_ GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::PrefillEvent>* ServeMove(const MoveBackend& backend,
                                                      const grpc::CallbackServerContext& context,
                                                      const v1::MoveRequest& request) {
  auto call = std::make_shared<MoveCall>(backend, request);
  call->HoldForCall();
  call->Begin(context, request);
  return call.get();
}

}  // namespace penstock
