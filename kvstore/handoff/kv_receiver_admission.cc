#include <utility>

#include "kvstore/handoff/kv_receiver.h"

// KvReceiver's admission: decode sessions, and the queue for blocks.

namespace penstock {

absl::Status KvReceiver::Expect(KvExpectation expectation) {
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    const HandoffKey key = expectation.key;
    RETURN_IF_ERROR(CheckExpectation(expectation));
    AbortOlderEpochs(key);
    const auto held = sessions_.find(key);  // An offer may have arrived already.
    const bool fresh = held == sessions_.end();
    Session& session = fresh ? NewSession(key) : held->second;
    session.expectation = std::move(expectation);
    refused = Enqueue(session);
    if (!refused.ok()) {
      session.expectation.reset();  // No callback: the return value tells the caller.
      Perform(session, session.machine.Cancel(refused));
    }
    ForgetEnded();
  }
  RunDeferred();
  return refused;
}

absl::Status KvReceiver::CheckExpectation(const KvExpectation& expectation) const {
  const HandoffKey& key = expectation.key;
  const int64_t min =
      format_.layout.BlocksFor(expectation.tokens) - FirstBlock(format_, expectation.tokens);
  if (expectation.tokens < 1 || expectation.blocks < min) {
    return InvalidArgument("handoff {}: {} tokens and {} blocks; at least 1 and {} are required",
                           HandoffKeyText(key), expectation.tokens, expectation.blocks, min);
  }
  if (expectation.blocks > pool_.blocks_total()) {
    return ResourceExhausted("handoff {} needs {} KV blocks, and this worker has {}",
                             HandoffKeyText(key), expectation.blocks, pool_.blocks_total());
  }
  const auto same = sessions_.find(key);
  if (same != sessions_.end() && same->second.expectation) {
    return absl::AlreadyExistsError(
        fmt::format("handoff {} is already expected", HandoffKeyText(key)));
  }
  if (const absl::Status* why = FindEnded(key)) {
    return Unavailable("handoff {} has ended before its decode session: {}", HandoffKeyText(key),
                       Message(*why));
  }
  if (HasNewerEpoch(key)) {
    return FailedPrecondition("handoff {}: the session has a newer epoch", HandoffKeyText(key));
  }
  if (same == sessions_.end() && sessions_.size() >= options_.handoffs_max) {
    return ResourceExhausted("{} handoffs are open, the limit is {}", sessions_.size(),
                             options_.handoffs_max);
  }
  return absl::OkStatus();
}

// Admits at once when the queue is empty and there is room; otherwise queues the session.
absl::Status KvReceiver::Enqueue(Session& session) {
  const KvExpectation& expectation = *session.expectation;
  std::optional<KvAdmission> admission;
  if (admission_queue_.empty()) admission = TryAdmit(expectation);
  if (!admission && admission_queue_.size() >= options_.waiting_max) {
    return ResourceExhausted("{} requests wait for KV blocks, the limit is {}",
                             admission_queue_.size(), options_.waiting_max);
  }
  // The codecs encode bf16; pages of other formats are compact already.
  const bool bf16 = format_.layout.dtype == KvDtype::kBf16;
  const auto lossy = bf16 ? std::span(expectation.lossy) : std::span<const KvCodecSpec>();
  Perform(session, session.machine.OnExpected(expectation.tokens, expectation.prompt_id, lossy,
                                              expectation.first));
  if (session.machine.aborted()) return absl::OkStatus();  // on_failed is called.
  if (admission) {
    Admit(session, *std::move(admission));
  } else {
    admission_queue_.push_back(session.machine.key());
  }
  return absl::OkStatus();
}

std::optional<KvAdmission> KvReceiver::TryAdmit(const KvExpectation& expectation) {
  if (expectation.admit) return expectation.admit();
  absl::StatusOr<BlockCredit> credit = pool_.Reserve(expectation.blocks);
  if (!credit.ok()) return std::nullopt;
  std::shared_ptr<WindowQuota> rows =
      pool_.ReserveRows(format_.layout.RowsAtOnce(expectation.tokens, format_.layout.block_tokens));
  if (rows == nullptr) return std::nullopt;
  credit->SetQuota(std::move(rows));
  return KvAdmission{.held = {}, .credit = *std::move(credit)};
}

void KvReceiver::Admit(Session& session, KvAdmission admission) {
  if (session.expectation->on_blocks) {
    Defer([on_blocks = session.expectation->on_blocks,
           given = std::make_shared<KvAdmission>(std::move(admission))] {
      on_blocks(std::move(*given));
    });
    session.handed_out = true;
    return;
  }
  const uint32_t first = FirstBlock(format_, session.expectation->tokens);
  session.pages = std::move(admission.held);
  if (session.pages.size() < first) session.pages.resize(first);
  const auto held = static_cast<uint32_t>(session.pages.size());
  session.credit = std::move(admission.credit);
  if (session.expectation->on_admitted) Defer(session.expectation->on_admitted);
  Perform(session, session.machine.OnAdmitted(clock_.Now(), held));
}

// First come, first served, so that small requests cannot starve a large one.
void KvReceiver::AdmitWaiting() {
  while (!admission_queue_.empty()) {
    Session& first = sessions_.at(admission_queue_.front());
    auto admission = TryAdmit(*first.expectation);
    if (!admission) return;
    admission_queue_.pop_front();
    Admit(first, *std::move(admission));
  }
}

void KvReceiver::Cancel(const HandoffKey& key, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end() || found->second.handed_out) return;
    Perform(found->second, found->second.machine.Cancel(why));
    ForgetEnded();
  }
  RunDeferred();
}

}  // namespace penstock
