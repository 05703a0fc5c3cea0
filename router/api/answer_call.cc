#include "router/api/answer_call.h"

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log/log.h"
#include "base/rpc/timer.h"
#include "router/admission/answer_backlog.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr size_t kMostRunning = 16;  // sessions of one call that run at once

void AddBlend(const v1::BlendUsage& from, v1::BlendUsage& to) {
  to.set_reused_tokens(to.reused_tokens() + from.reused_tokens());
  to.set_recomputed_tokens(to.recomputed_tokens() + from.recomputed_tokens());
  to.set_fallback_tokens(to.fallback_tokens() + from.fallback_tokens());
  to.set_filled_tokens(to.filled_tokens() + from.filled_tokens());
  to.set_deviation(std::max(to.deviation(), from.deviation()));
}

void AddUsage(const v1::Usage& from, v1::Usage& to) {
  to.set_prompt_tokens(to.prompt_tokens() + from.prompt_tokens());
  to.set_completion_tokens(to.completion_tokens() + from.completion_tokens());
  to.set_cached_tokens(to.cached_tokens() + from.cached_tokens());
  to.set_recomputed_tokens(to.recomputed_tokens() + from.recomputed_tokens());
  to.set_evicted_tokens(to.evicted_tokens() + from.evicted_tokens());
  if (from.has_blend()) AddBlend(from.blend(), *to.mutable_blend());
  to.set_decode_evicted_tokens(to.decode_evicted_tokens() + from.decode_evicted_tokens());
  to.set_compactions(to.compactions() + from.compactions());
  to.set_attended_tokens(to.attended_tokens() + from.attended_tokens());
  to.set_pinned_tokens(to.pinned_tokens() + from.pinned_tokens());
  to.set_reasoning_tokens(to.reasoning_tokens() + from.reasoning_tokens());
  to.set_accepted_draft_tokens(to.accepted_draft_tokens() + from.accepted_draft_tokens());
  to.set_rejected_draft_tokens(to.rejected_draft_tokens() + from.rejected_draft_tokens());
}

// One completion call. `self_` keeps it alive until every session has finished, and the connection
// until the answer is sent. Any thread.
class AnswerCall final : public BodySource, public std::enable_shared_from_this<AnswerCall> {
 public:
  explicit AnswerCall(AnswerCallArgs args) : args_(std::move(args)), stream_(args_.stream) {}

  void Start();

  State Pull(std::string& out, size_t max) override;

 private:
  // One prompt's session.
  struct Part final : ClientSink {
    Part(AnswerCall& owner, uint32_t first) : call(owner), first_choice(first) {}
    void Send(v1::GenerateResponse response) override {
      call.OnResponse(first_choice, std::move(response));
    }
    void Finish(const absl::Status& status) override { call.OnFinished(status); }

    AnswerCall& call;
    const uint32_t first_choice;  // index of its choice 0 in the whole answer
    AdmittedRequest admitted;
  };

  absl::Status Admit();
  void OnResponse(uint32_t first_choice, v1::GenerateResponse response) EXCLUDES(mutex_);
  void OnFinished(const absl::Status& status) EXCLUDES(mutex_);
  void StartSome() EXCLUDES(mutex_);
  void StartSoon() REQUIRES(mutex_);
  void Answer() REQUIRES(mutex_);
  void End(const absl::Status& status);
  void EndSoon(const absl::Status& status) REQUIRES(mutex_);
  std::vector<HttpHeader> Headers(std::string type) const;

  AnswerCallArgs args_;
  const bool stream_;
  std::vector<std::unique_ptr<Part>> parts_;  // complete before the first session starts

  Mutex mutex_;
  std::unique_ptr<AnswerFormat> format_ GUARDED_BY(mutex_);  // once all prompts are admitted
  AnswerBacklog backlog_ GUARDED_BY(mutex_);
  std::optional<AnswerCollector> collector_ GUARDED_BY(mutex_);
  v1::Usage usage_ GUARDED_BY(mutex_);
  size_t started_ GUARDED_BY(mutex_) = 0;  // sessions, in order
  size_t finished_ GUARDED_BY(mutex_) = 0;
  bool answered_ GUARDED_BY(mutex_) = false;  // Respond or Stream was called
  absl::Status status_ GUARDED_BY(mutex_);    // the first error of a session
  Timer limit_ GUARDED_BY(mutex_);
  Timer end_ GUARDED_BY(mutex_);
  Timer start_ GUARDED_BY(mutex_);
  std::shared_ptr<AnswerCall> self_ GUARDED_BY(mutex_);
};

absl::Status AnswerCall::Admit() {
  uint32_t choices = 0;
  uint32_t prompt_tokens = 0;
  const TimePoint deadline = args_.core.clock().Now() + args_.limit;
  const Caller caller = args_.ticket.caller;
  const Endpoint endpoint = args_.ticket.endpoint;
  std::optional<EntryTicket> ticket = std::move(args_.ticket);  // for the first prompt
  for (const v1::GenerateRequest& prompt : args_.prompts) {
    if (!ticket) {
      ASSIGN_OR_RETURN(ticket, args_.core.Enter(caller, endpoint));
    }
    auto part = std::make_unique<Part>(*this, choices);
    ASSIGN_OR_RETURN(part->admitted,
                     args_.core.Admit({.request = prompt,
                                       .ticket = *std::exchange(ticket, std::nullopt),
                                       .received = args_.received,
                                       .trace = args_.trace,
                                       .deadline = deadline,
                                       .client = *part}));
    choices += part->admitted.choices;
    prompt_tokens += part->admitted.prompt_tokens;
    parts_.push_back(std::move(part));
  }
  MutexLock lock(mutex_);
  format_ = args_.format(choices, prompt_tokens);
  args_.prompts = std::vector<v1::GenerateRequest>();  // the sessions have the tokens
  args_.prompt_names = std::vector<FieldName>();
  if (!stream_) collector_.emplace(choices);
  return absl::OkStatus();
}

void AnswerCall::Start() {
  if (const absl::Status admitted = Admit(); !admitted.ok()) {
    return args_.exchange->Respond(args_.error(RenameFields(admitted, args_.prompt_names)));
  }
  const std::weak_ptr<AnswerCall> weak = weak_from_this();
  {
    MutexLock lock(mutex_);
    self_ = shared_from_this();
    limit_.Set(args_.limit, [weak, limit = args_.limit] {
      const std::shared_ptr<AnswerCall> call = weak.lock();
      if (call == nullptr) return;
      call->End(DeadlineExceeded("the request took longer than the {} s it may",
                                 std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
    });
  }
  args_.exchange->OnClientLeft([weak] {
    if (const std::shared_ptr<AnswerCall> call = weak.lock()) {
      call->End(Cancelled("the client has left"));
    }
  });
  StartSome();
}

// The caller must not hold mutex_, nor a session's lock.
void AnswerCall::StartSome() {
  size_t from = 0, to = 0;
  {
    MutexLock lock(mutex_);
    from = started_;
    to = started_ = std::max(from, std::min(parts_.size(), finished_ + kMostRunning));
  }
  for (size_t i = from; i < to; ++i) parts_[i]->admitted.driver->Start();
}

// Calls StartSome on a timer's thread, which holds no session's lock.
void AnswerCall::StartSoon() {
  start_.Set(Duration::zero(), [weak = weak_from_this()] {
    if (const std::shared_ptr<AnswerCall> call = weak.lock()) call->StartSome();
  });
}

// Ends all sessions. The caller must not hold mutex_: sessions call OnResponse and OnFinished.
void AnswerCall::End(const absl::Status& status) {
  for (const auto& part : parts_) part->admitted.driver->OnClientGone(status);
}

// Calls End on a timer's thread, which holds no session's lock.
void AnswerCall::EndSoon(const absl::Status& status) {
  end_.Set(Duration::zero(), [weak = weak_from_this(), status] {
    if (const std::shared_ptr<AnswerCall> call = weak.lock()) call->End(status);
  });
}

std::vector<HttpHeader> AnswerCall::Headers(std::string type) const {
  return {{"content-type", std::move(type)},
          {"cache-control", "no-cache"},
          {"x-accel-buffering", "no"},
          {args_.request_id_header, args_.request_id}};
}

void AnswerCall::OnResponse(uint32_t first_choice, v1::GenerateResponse response) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (response.has_chunk()) {
      response.mutable_chunk()->set_index(first_choice + response.chunk().index());
    } else {
      v1::Final& ending = *response.mutable_final();
      ending.set_index(first_choice + ending.index());
      if (ending.has_usage()) AddUsage(ending.usage(), usage_);
      ending.clear_usage();  // The sum over all prompts is sent at the end.
    }
    if (!stream_) return collector_->Add(std::move(response));
    const bool waits = !backlog_.empty();
    backlog_.Add(std::move(response));
    if (waits) return;  // The connection has been woken already.
    first = !std::exchange(answered_, true);
  }
  if (!first) return args_.exchange->Wake();
  args_.exchange->Stream({.status = 200, .headers = Headers("text/event-stream")},
                         shared_from_this());
}

void AnswerCall::OnFinished(const absl::Status& status) {
  std::shared_ptr<AnswerCall> self;
  MutexLock lock(mutex_);
  ++finished_;
  if (!status.ok() && status_.ok()) {
    status_ = status;
    if (finished_ < parts_.size()) {
      EndSoon(WithDetail(Cancelled("another prompt of the request failed"),
                         {.reason = kReasonOtherPrompt}));
    }
  }
  if (started_ < parts_.size()) StartSoon();
  if (finished_ < parts_.size()) return;
  limit_.Clear();
  self.swap(self_);
  Answer();
}

void AnswerCall::Answer() {
  if (answered_) return args_.exchange->Wake();
  answered_ = true;
  if (!status_.ok()) return args_.exchange->Respond(args_.error(status_));
  v1::GenerateUnaryResponse whole = collector_->Take();
  whole.mutable_usage()->Swap(&usage_);
  args_.exchange->Respond(
      {.status = 200, .headers = Headers("application/json"), .body = format_->Whole(whole)});
}

BodySource::State AnswerCall::Pull(std::string& out, size_t max) {
  MutexLock lock(mutex_);
  while (out.size() < max) {
    const std::optional<v1::GenerateResponse> next = backlog_.Take();
    if (!next) break;
    if (next->has_chunk()) {
      format_->AppendChunk(next->chunk(), out);
    } else {
      format_->AppendFinal(next->final(), out);
    }
  }
  if (!backlog_.empty() || finished_ < parts_.size()) return State::kMore;
  if (!status_.ok()) {
    format_->AppendError(status_, out);
    return State::kBroken;
  }
  format_->AppendEnd(usage_, out);
  return State::kEnd;
}

}  // namespace

void StartAnswerCall(AnswerCallArgs args) {
  std::make_shared<AnswerCall>(std::move(args))->Start();
}

}  // namespace penstock
