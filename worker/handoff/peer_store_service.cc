#include "worker/handoff/peer_store_service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "base/log/log.h"
#include "base/mutex.h"
#include "base/rpc/event_stream.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "base/rpc/timer.h"
#include "kvstore/handoff/handoff_types.h"
#include "proto/peer_store.grpc.pb.h"

namespace penstock {
namespace {

// How long a call waits for blocks to restore its prefix into.
constexpr Duration kRoomWaitMax = std::chrono::seconds(2);

// Shared by all calls.
struct Shared {
  explicit Shared(PeerStoreBackend given) : backend(std::move(given)) {}

  const PeerStoreBackend backend;
  std::atomic<uint32_t> calls{0};
};

// The block names of a request. INVALID_ARGUMENT names the wrong field.
absl::StatusOr<PromptBlocks> BlocksOf(const v1::SendPrefixRequest& request) {
  PromptBlocks prompt;
  if (request.root().size() != sizeof(BlockId)) {
    return InvalidArgument("root has {} bytes; it must have {}", request.root().size(),
                           sizeof(BlockId));
  }
  const size_t count = request.ids().size() / sizeof(BlockId);
  if (count == 0 || request.ids().size() % sizeof(BlockId) != 0) {
    return InvalidArgument("ids has {} bytes; it must have one or more ids of {} bytes",
                           request.ids().size(), sizeof(BlockId));
  }
  if (request.held_blocks() >= count) {
    return InvalidArgument(
        "held_blocks is {} and {} ids are requested; held_blocks must be smaller",
        request.held_blocks(), count);
  }
  if (request.endpoint().empty())
    return InvalidArgument("endpoint is empty; it must be the host:port that receives the KV");
  std::memcpy(prompt.root.bytes.data(), request.root().data(), sizeof(BlockId));
  prompt.ids.resize(count);
  std::memcpy(prompt.ids.data(), request.ids().data(), request.ids().size());
  return prompt;
}

class SendCall final : public EventStream<v1::SendPrefixEvent> {
 public:
  explicit SendCall(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~SendCall() override {
    if (counted_) --shared_->calls;
  }

  void Begin(const grpc::CallbackServerContext& context, const v1::SendPrefixRequest& request) {
    trace_ = TraceOf(context.client_metadata());
    const absl::Status status = TryBegin(request);
    if (!status.ok()) return EndWith(status);
    Admit();
  }

  void OnCancel() override {
    EndWith(Cancelled("the requesting worker has cancelled the call, or is gone"));
    if (claim_.empty()) return;  // the key is another call's
    // Without effect before the handoff has started; Send checks afterwards whether the call ended.
    shared_->backend.sender.Cancel(key_, Cancelled("the requesting worker has cancelled the call"));
  }

 private:
  absl::Status TryBegin(const v1::SendPrefixRequest& request) {
    const PeerStoreBackend& backend = shared_->backend;
    key_ = HandoffKeyOf(request.key());
    endpoint_ = request.endpoint();
    held_by_peer_ = request.held_blocks();
    ASSIGN_OR_RETURN(claim_, backend.sender.Claim(key_));
    ASSIGN_OR_RETURN(prompt_, BlocksOf(request));
    counted_ = true;
    if (++shared_->calls > backend.calls_max) {
      return ResourceExhausted("{} prefixes are being sent, the limit (peer_reads) is {}",
                               shared_->calls.load() - 1, backend.calls_max);
    }
    const int64_t found = backend.cache.CountLeading(prompt_);
    if (found <= static_cast<int64_t>(held_by_peer_)) return NothingToSend(found);
    prompt_.ids.resize(static_cast<size_t>(found));
    return absl::OkStatus();
  }

  absl::Status NothingToSend(int64_t found) const {
    return absl::NotFoundError(
        fmt::format("{} blocks of the prefix are here, and the requesting worker has {}", found,
                    held_by_peer_));
  }

  // Of a prefix of this number of blocks, or of one of fewer.
  int64_t RowsToSend(int64_t blocks) const {
    const KvLayout& layout = shared_->backend.layout;
    return layout.RowsAtOnce(blocks * layout.block_tokens, 1);
  }

  // Takes the blocks in device pages, and room for the blocks of lower tiers. Room may come later.
  void Admit() EXCLUDES(mutex_) {
    const auto self = std::static_pointer_cast<SendCall>(shared_from_this());
    const auto blocks = static_cast<int64_t>(prompt_.ids.size());
    {
      // on_restored runs on the store's thread, perhaps before Admit returns.
      MutexLock lock(mutex_);
      if (ended_ || gone_on_) return;
      const uint64_t freed = shared_->backend.cache.freed_count();
      admission_ = shared_->backend.cache.Admit(prompt_, {.held_max = blocks,
                                                          .blocks = blocks,
                                                          .rows = RowsToSend(blocks),
                                                          .left = shared_->backend.blocks_left,
                                                          .on_restored = [self] { self->GoOn(); }});
      if (!admission_ && !room_wait_over_) return AwaitRoom(freed);
      room_timer_.Clear();
    }
    GoOn();
  }

  // Admits again when blocks come free, and gives up after kRoomWaitMax.
  void AwaitRoom(uint64_t seen) REQUIRES(mutex_) {
    const auto self = std::static_pointer_cast<SendCall>(shared_from_this());
    if (!std::exchange(awaits_room_, true)) {
      room_timer_.Set(kRoomWaitMax, [self] { self->StopAwaitingRoom(); });
    }
    room_wait_ = shared_->backend.cache.WhenFreed(seen, [self] { self->Admit(); });
  }

  void StopAwaitingRoom() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      room_wait_over_ = true;
    }
    GoOn();
  }

  // Offers the blocks once all of them are in device pages.
  void GoOn() EXCLUDES(mutex_) {
    std::optional<CacheAdmission> admission;
    {
      MutexLock lock(mutex_);
      if (ended_ || gone_on_) return;
      if (admission_ && !shared_->backend.cache.FinishRestore(prompt_, admission_)) return;
      gone_on_ = true;
      admission = std::exchange(admission_, std::nullopt);
    }
    const absl::Status status =
        admission ? Send(admission->held)
                  : ResourceExhausted(
                        "no blocks came free within {} ms to restore the prefix into; retry later",
                        kRoomWaitMax.count() / 1'000'000);
    if (!status.ok()) EndWith(status);
  }

  absl::Status Send(std::span<const BlockRef> held) {
    const PeerStoreBackend& backend = shared_->backend;
    const auto blocks = static_cast<uint32_t>(held.size());
    if (blocks <= held_by_peer_) return NothingToSend(blocks);
    const uint32_t tokens = blocks * static_cast<uint32_t>(backend.layout.block_tokens);
    const BlockId& last = prompt_.ids[blocks - 1];
    const auto self = std::static_pointer_cast<SendCall>(shared_from_this());
    const auto channel = backend.handoffs.Open(key_, endpoint_, trace_);
    absl::Status started = backend.sender.Start(
        {.key = key_,
         .tokens = tokens,
         .prompt_id = std::string(last.bytes.begin(), last.bytes.end()),
         .channel = channel,
         .on_committed = [self, blocks](const KvSendStats&) { self->OnSent(blocks); },
         .on_failed = [self](const absl::Status& status) { self->EndWith(status); }});
    if (!started.ok()) {
      channel->Close();
      return started;
    }
    v1::SendPrefixEvent event;
    event.mutable_found()->set_blocks(blocks);
    Push(std::move(event));
    if (backend.on_step) backend.on_step("found");
    backend.sender.SendLayers(key_, {.first_layer = 0,
                                     .last_layer = backend.layout.layers,
                                     .first_token = 0,
                                     .last_token = tokens,
                                     .blocks = held});
    backend.sender.Finish(key_, {});
    // A cancel that came before Start had no effect, so it is repeated here.
    MutexLock lock(mutex_);
    if (ended_)
      backend.sender.Cancel(key_, Cancelled("the requesting worker has cancelled the call"));
    return absl::OkStatus();
  }

  void OnSent(uint32_t blocks) {
    if (!SetEnded()) return;
    shared_->backend.metrics.OnSent(blocks - held_by_peer_);
    LogEnd("sent", blocks - held_by_peer_);
    End(grpc::Status::OK);
  }

  void EndWith(const absl::Status& status) {
    if (!SetEnded()) return;
    shared_->backend.metrics.OnEnded(status);
    LogEnd(Message(status), 0);
    End(ToGrpcStatus(status));
  }

  void LogEnd(std::string_view result, uint32_t blocks) const {
    LogRequest(LogLevel::kDebug, {.trace = trace_.trace_id}, "prefix_sent",
               {{"handoff", HandoffKeyText(key_)},
                {"to", endpoint_},
                {"blocks", blocks},
                {"result", result}});
  }

  // True the first time. Gives back all blocks that the sender does not hold.
  bool SetEnded() EXCLUDES(mutex_) {
    std::optional<CacheAdmission> dropped;
    FreedWaiters::Wait room_wait;
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return false;
    room_timer_.Clear();
    room_wait = std::move(room_wait_);
    dropped = std::exchange(admission_, std::nullopt);
    return true;
  }

  const std::shared_ptr<Shared> shared_;  // the store may call when the service is gone
  // Set before other threads see the call.
  TraceContext trace_;  // of the request that needs the prefix
  HandoffKey key_;
  HandoffClaims::Claim claim_;
  std::string endpoint_;
  uint32_t held_by_peer_ = 0;
  PromptBlocks prompt_;
  bool counted_ = false;
  Mutex mutex_;
  std::optional<CacheAdmission> admission_ GUARDED_BY(mutex_);  // being restored into device pages
  bool gone_on_ GUARDED_BY(mutex_) = false;                     // the restore has ended
  FreedWaiters::Wait room_wait_ GUARDED_BY(mutex_);             // while the call waits for blocks
  Timer room_timer_ GUARDED_BY(mutex_);                         // limits that wait
  bool awaits_room_ GUARDED_BY(mutex_) = false;
  bool room_wait_over_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace

class PeerStoreService::Impl final : public v1::PeerStore::CallbackService {
 public:
  explicit Impl(PeerStoreBackend backend) : shared_(std::make_shared<Shared>(std::move(backend))) {}

  grpc::ServerWriteReactor<v1::SendPrefixEvent>* SendPrefix(
      grpc::CallbackServerContext* context, const v1::SendPrefixRequest* request) override {
    auto call = std::make_shared<SendCall>(shared_);
    call->HoldForCall();
    call->Begin(*context, *request);
    return call.get();
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

PeerStoreService::PeerStoreService(PeerStoreBackend backend)
    : impl_(std::make_unique<Impl>(std::move(backend))) {}
PeerStoreService::~PeerStoreService() = default;
grpc::Service* PeerStoreService::service() { return impl_.get(); }

}  // namespace penstock
