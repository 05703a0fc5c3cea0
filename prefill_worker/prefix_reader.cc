#include "prefill_worker/prefix_reader.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/log/log.h"
#include "base/rpc/rpc_server.h"
#include "base/rpc/rpc_trace.h"
#include "base/rpc/timer.h"
#include "kvstore/handoff/handoff_types.h"
#include "proto/peer_store.grpc.pb.h"

namespace penstock {
namespace {

Duration PatienceOf(const v1::PeerPrefix& peer) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::milli>(std::clamp(peer.patience_ms(), 1.0, 600'000.0)));
}

v1::PeerRead::Outcome OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return v1::PeerRead::MISSING;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::PeerRead::LATE;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return v1::PeerRead::REFUSED;
    default:
      return v1::PeerRead::LOST;
  }
}

// The key of a handoff that this worker starts, without a router.
HandoffKey RandomKey() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return {.session = random(), .epoch = 0, .nonce = random()};
}

std::string BytesOf(const BlockId& id) { return {id.bytes.begin(), id.bytes.end()}; }

}  // namespace

// One read: takes this worker's own blocks, also from lower tiers; then calls the peer; then
// receives the handoff.
class PrefixReader::Read final : public PrefixRead,
                                 public grpc::ClientReadReactor<v1::SendPrefixEvent>,
                                 public std::enable_shared_from_this<Read> {
 public:
  Read(PrefixReader& reader, PrefillJob job, const v1::PeerPrefix& peer, OnEnded on_ended)
      : reader_(reader),
        parts_(reader.parts_),
        peer_(peer),
        key_(RandomKey()),
        started_at_(parts_.clock.Now()),
        deadline_(started_at_ + PatienceOf(peer)),
        job_(std::move(job)),
        on_ended_(std::move(on_ended)) {}

  void Begin() { Admit(); }
  void Cancel() override { EndWith(v1::PeerRead::OUTCOME_UNSPECIFIED); }
  // Ends the read; the job goes on with the blocks that it has.
  void Abandon() { EndWith(v1::PeerRead::LOST); }

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  int64_t BlocksOfJob() const REQUIRES(mutex_) {
    return parts_.layout.BlocksFor(static_cast<int64_t>(job_.tokens.size()));
  }
  void Admit() EXCLUDES(mutex_);
  void AwaitRoom(uint64_t seen) REQUIRES(mutex_);
  void StopAwaitingRoom() EXCLUDES(mutex_);
  void GoOn() EXCLUDES(mutex_);
  void Ask() EXCLUDES(mutex_);
  void OnFound(uint32_t blocks) EXCLUDES(mutex_);
  absl::Status Expect(uint32_t blocks) EXCLUDES(mutex_);
  void OnCommitted(ReceivedKv kv) EXCLUDES(mutex_);
  void OnFailed(const absl::Status& status) EXCLUDES(mutex_);
  void EndWith(v1::PeerRead::Outcome outcome, uint32_t blocks = 0) EXCLUDES(mutex_);
  void ForgetWhenDone() EXCLUDES(mutex_);

  PrefixReader& reader_;
  const Parts& parts_;
  const v1::PeerPrefix peer_;
  const HandoffKey key_;
  const TimePoint started_at_;
  const TimePoint deadline_;

  // Used by gRPC once the call has started.
  std::unique_ptr<v1::PeerStore::Stub> stub_;
  grpc::ClientContext context_;
  v1::SendPrefixRequest request_;
  v1::SendPrefixEvent event_;

  Mutex mutex_;
  PrefillJob job_ GUARDED_BY(mutex_);
  OnEnded on_ended_ GUARDED_BY(mutex_);  // reset at the end: it may own this read
  std::optional<CacheAdmission> admission_ GUARDED_BY(mutex_);
  CacheAccess access_ GUARDED_BY(mutex_);
  uint32_t wanted_ GUARDED_BY(mutex_) = 0;           // leading blocks
  uint32_t held_ GUARDED_BY(mutex_) = 0;             // of them, here already
  FreedWaiters::Wait room_wait_ GUARDED_BY(mutex_);  // while the read waits for blocks
  Timer room_timer_ GUARDED_BY(mutex_);              // limits that wait
  bool awaits_room_ GUARDED_BY(mutex_) = false;
  bool asked_ GUARDED_BY(mutex_) = false;
  bool in_call_ GUARDED_BY(mutex_) = false;
  bool expecting_ GUARDED_BY(mutex_) = false;  // the receiver reports the end
  bool over_ GUARDED_BY(mutex_) = false;
};

// Takes the prompt's blocks, with the KV that this worker has.
void PrefixReader::Read::Admit() {
  const auto self = shared_from_this();
  {
    // on_restored runs on the store's thread, perhaps before Admit returns.
    MutexLock lock(mutex_);
    if (over_ || asked_) return;
    const uint64_t freed = parts_.cache.freed_count();
    const int64_t max = job_.CachedBlocksMax(parts_.layout);
    wanted_ = static_cast<uint32_t>(std::min<int64_t>(peer_.blocks(), max));
    admission_ =
        parts_.cache.Admit(job_.prompt, {.held_max = max,
                                         .blocks = job_.Blocks(parts_.layout, 0),
                                         .rows = job_.Rows(parts_.layout, parts_.chunk_tokens),
                                         .left = parts_.blocks_left,
                                         .rows_left = parts_.rows_left,
                                         .on_restored = [self] { self->GoOn(); }});
    if (!admission_ && parts_.clock.Now() < deadline_) return AwaitRoom(freed);
    awaits_room_ = false;
    room_timer_.Clear();
  }
  GoOn();
}

// Admits again when blocks come free, and gives up at the deadline.
void PrefixReader::Read::AwaitRoom(uint64_t seen) {
  const auto self = shared_from_this();
  if (!std::exchange(awaits_room_, true)) {
    room_timer_.Set(deadline_ - parts_.clock.Now(), [self] { self->StopAwaitingRoom(); });
  }
  room_wait_ = parts_.cache.WhenFreed(seen, [self] { self->Admit(); });
}

void PrefixReader::Read::StopAwaitingRoom() {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(awaits_room_, false)) return;
  }
  GoOn();
}

// Calls the peer once this worker's own blocks are in device pages.
void PrefixReader::Read::GoOn() {
  auto outcome = v1::PeerRead::OUTCOME_UNSPECIFIED;
  {
    MutexLock lock(mutex_);
    if (over_ || asked_) return;
    if (admission_ && !parts_.cache.FinishRestore(job_.prompt, admission_)) return;
    asked_ = true;
    if (!admission_) {
      outcome = v1::PeerRead::REFUSED;
    } else {
      held_ = static_cast<uint32_t>(admission_->held.size());
      if (held_ >= wanted_) outcome = v1::PeerRead::NEEDLESS;
    }
  }
  if (outcome != v1::PeerRead::OUTCOME_UNSPECIFIED) return EndWith(outcome);
  Ask();
}

void PrefixReader::Read::Ask() {
  {
    MutexLock lock(mutex_);
    if (over_) return;
    SetSessionKey(key_, request_.mutable_key());
    request_.set_endpoint(peer_.own_endpoint());
    request_.set_root(BytesOf(job_.prompt.root));
    for (uint32_t i = 0; i < wanted_; ++i)
      request_.mutable_ids()->append(BytesOf(job_.prompt.ids[i]));
    request_.set_held_blocks(held_);
    in_call_ = true;
    AddTrace(job_.trace, context_);
  }
  context_.set_deadline(std::chrono::system_clock::now() + (deadline_ - parts_.clock.Now()));
  stub_ = v1::PeerStore::NewStub(reader_.channels_.To(peer_.endpoint()));
  stub_->async()->SendPrefix(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
}

void PrefixReader::Read::OnReadDone(bool ok) {
  if (!ok) return;
  if (event_.has_found()) OnFound(event_.found().blocks());
  StartRead(&event_);
}

void PrefixReader::Read::OnFound(uint32_t blocks) {
  const absl::Status expected = Expect(blocks);
  if (!expected.ok()) EndWith(OutcomeOf(expected));
}

absl::Status PrefixReader::Read::Expect(uint32_t blocks) {
  const auto self = shared_from_this();
  KvExpectation expectation{.key = key_};
  {
    MutexLock lock(mutex_);
    if (over_ || expecting_) return absl::OkStatus();
    expectation.name = job_.name;
    if (blocks <= held_ || blocks > wanted_) {
      return DataLoss("worker {} offers {} blocks; {} were requested, of which {} are here already",
                      peer_.endpoint(), blocks, wanted_, held_);
    }
    expecting_ = true;
    access_ = admission_->access;
    expectation.tokens = blocks * static_cast<uint32_t>(parts_.layout.block_tokens);
    expectation.prompt_id = BytesOf(job_.prompt.ids[blocks - 1]);
    expectation.blocks = BlocksOfJob();
    // Shared only because a std::function must be copyable.
    const auto given = std::make_shared<KvAdmission>(
        KvAdmission{.held = std::move(admission_->held), .credit = std::move(admission_->credit)});
    admission_.reset();
    expectation.admit = [given] { return std::optional<KvAdmission>(std::move(*given)); };
  }
  expectation.on_committed = [self](ReceivedKv kv) { self->OnCommitted(std::move(kv)); };
  expectation.on_failed = [self](const absl::Status& status) { self->OnFailed(status); };
  RETURN_IF_ERROR(parts_.receiver.Expect(std::move(expectation)));
  bool over = false;
  {
    MutexLock lock(mutex_);
    over = over_;  // EndWith came before Expect and had nothing to cancel
  }
  if (over)
    parts_.receiver.Cancel(key_, Cancelled("the prompt does not wait for the prefix any more"));
  return absl::OkStatus();
}

void PrefixReader::Read::OnCommitted(ReceivedKv kv) {
  const auto blocks = static_cast<uint32_t>(kv.blocks.size());
  uint32_t held = 0;
  {
    MutexLock lock(mutex_);
    held = held_;
    if (over_) return;
    parts_.cache.Insert(access_, job_.prompt, kv.blocks);
    admission_.emplace(CacheAdmission{
        .access = access_, .held = std::move(kv.blocks), .credit = std::move(kv.credit)});
  }
  EndWith(v1::PeerRead::READ, blocks - held);
}

void PrefixReader::Read::OnFailed(const absl::Status& status) {
  auto outcome = OutcomeOf(status);
  {
    // The peer may report the end of the call before the call's status arrives.
    MutexLock lock(mutex_);
    if (parts_.clock.Now() >= deadline_) outcome = v1::PeerRead::LATE;
    if (!over_) {
      LogRequest(LogLevel::kInfo, job_.name.tag(), "prefix_computed_instead",
                 {{"from", peer_.endpoint()}, {"error", Message(status)}});
    }
  }
  EndWith(outcome);
}

void PrefixReader::Read::OnDone(const grpc::Status& status) {
  const auto self = shared_from_this();  // The reader drops its share in here.
  bool expecting = false;
  {
    MutexLock lock(mutex_);
    in_call_ = false;
    expecting = expecting_;
  }
  if (!expecting) {
    OnFailed(FromGrpcStatus(status));
  } else if (!status.ok()) {
    // Leads to OnFailed, unless everything has arrived.
    parts_.receiver.Cancel(key_, FromGrpcStatus(status));
  }
  ForgetWhenDone();
}

// Only the first call counts. With an unspecified outcome the job is dropped.
void PrefixReader::Read::EndWith(v1::PeerRead::Outcome outcome, uint32_t blocks) {
  PrefillJob job;
  OnEnded on_ended;
  std::optional<CacheAdmission> admission;
  FreedWaiters::Wait room_wait;  // ends without the lock
  bool in_call = false;
  bool expecting = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(over_, true)) return;
    room_timer_.Clear();
    room_wait = std::move(room_wait_);
    job = std::move(job_);
    on_ended = std::exchange(on_ended_, nullptr);
    admission = std::exchange(admission_, std::nullopt);
    in_call = in_call_;
    expecting = expecting_;
  }
  if (outcome != v1::PeerRead::OUTCOME_UNSPECIFIED) {
    v1::PeerRead read;
    read.set_outcome(outcome);
    read.set_blocks(blocks);
    read.set_ms(Milliseconds(parts_.clock.Now() - started_at_));
    parts_.metrics.OnEnded(read);
    job.peer = std::move(read);
    job.admission = std::move(admission);
    on_ended(std::move(job));
  }
  if (outcome != v1::PeerRead::READ) {
    if (in_call) context_.TryCancel();
    if (expecting) {
      parts_.receiver.Cancel(key_, Cancelled("the prompt does not wait for the prefix any more"));
    }
  }
  ForgetWhenDone();
}

void PrefixReader::Read::ForgetWhenDone() {
  {
    MutexLock lock(mutex_);
    if (in_call_ || !over_) return;
  }
  reader_.Erase(shared_from_this());
}

// ---------------------------------------------------------------- the reader

PrefixReader::PrefixReader(Parts parts) : parts_(std::move(parts)), channels_(parts_.credentials) {}

PrefixReader::~PrefixReader() { Stop(); }

std::shared_ptr<PrefixRead> PrefixReader::Start(PrefillJob job, const v1::PeerPrefix& peer,
                                                OnEnded on_ended) {
  auto read = std::make_shared<Read>(*this, std::move(job), peer, std::move(on_ended));
  if (Insert(read)) {
    read->Begin();
  } else {
    read->Abandon();
  }
  return read;
}

void PrefixReader::Stop() {
  std::set<std::shared_ptr<Read>> reads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    reads = reads_;
  }
  for (const auto& read : reads) read->Abandon();
  MutexLock lock(mutex_);
  while (!reads_.empty()) changed_.Wait(mutex_);
}

size_t PrefixReader::reads() const {
  MutexLock lock(mutex_);
  return reads_.size();
}

bool PrefixReader::Insert(const std::shared_ptr<Read>& read) {
  MutexLock lock(mutex_);
  if (stopping_ || reads_.size() >= parts_.reads_max) return false;
  reads_.insert(read);
  return true;
}

void PrefixReader::Erase(const std::shared_ptr<Read>& read) {
  MutexLock lock(mutex_);
  reads_.erase(read);
  changed_.NotifyAll();
}

}  // namespace penstock
