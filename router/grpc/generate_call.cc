#include "router/grpc/generate_call.h"

#include <utility>

#include "base/rpc/timer.h"
#include "router/admission/answer_backlog.h"
#include "router/grpc/answer.h"
#include "router/grpc/frame.h"
#include "router/request/message_check.h"

namespace penstock {
namespace {

absl::Status ParseGenerate(std::string_view message, v1::GenerateRequest& request) {
  return ParseChecked(message, request);
}

absl::Status ParseWarmPrefix(std::string_view message, v1::GenerateRequest& request) {
  v1::WarmPrefixRequest warm;
  RETURN_IF_ERROR(ParseChecked(message, warm));
  request.set_model(warm.model());
  if (warm.has_text()) request.set_text(warm.text());
  if (warm.has_tokens()) *request.mutable_tokens() = std::move(*warm.mutable_tokens());
  if (warm.has_chat()) {
    *request.mutable_chat() = std::move(*warm.mutable_chat());
    if (!request.chat().has_add_generation_prompt()) {
      request.mutable_chat()->set_add_generation_prompt(false);
    }
  }
  *request.mutable_cache() = std::move(*warm.mutable_cache());
  request.mutable_cache()->mutable_prompt();
  request.set_client_request_id(warm.client_request_id());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(1);
  return absl::OkStatus();
}

void RespondWhole(v1::GenerateUnaryResponse whole, Exchange& exchange) { Respond(exchange, whole); }

void RespondWarm(v1::GenerateUnaryResponse whole, Exchange& exchange) {
  v1::WarmPrefixResponse answer;
  answer.set_request_id(whole.request_id());
  *answer.mutable_usage() = std::move(*whole.mutable_usage());
  answer.mutable_usage()->set_completion_tokens(0);
  Respond(exchange, answer);
}

// One generating call. `self_` keeps it alive until its session has finished, and the connection
// until the answer is sent. Any thread.
class GenerateCall final : public BodySource,
                           private ClientSink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  GenerateCall(const GenerateForm& form, std::shared_ptr<Exchange> exchange)
      : form_(form), exchange_(std::move(exchange)) {}

  // Enters the core, parses and checks the request, and prepares its session.
  absl::Status Admit(const GrpcGenerateArgs& args);
  void Start();

  State Pull(std::string& out, size_t max) override;
  std::vector<HttpHeader> Trailers() override;

 private:
  void Send(v1::GenerateResponse response) override EXCLUDES(mutex_);
  void Finish(const absl::Status& status) override EXCLUDES(mutex_);
  absl::Status Read(const HttpRequest& call, v1::GenerateRequest& request);
  void ArmDeadline() REQUIRES(mutex_);
  void End(const absl::Status& status) { admitted_.driver->OnClientGone(status); }

  const GenerateForm& form_;
  const std::shared_ptr<Exchange> exchange_;
  TimePoint deadline_ = TimePoint::max();
  AdmittedRequest admitted_;  // set by Admit

  Mutex mutex_;
  AnswerBacklog backlog_ GUARDED_BY(mutex_);
  std::optional<AnswerCollector> collector_ GUARDED_BY(mutex_);  // for a unary answer
  std::optional<absl::Status> ending_ GUARDED_BY(mutex_);
  bool answered_ GUARDED_BY(mutex_) = false;  // Respond or Stream was called
  Timer deadline_timer_ GUARDED_BY(mutex_);
  std::shared_ptr<GenerateCall> self_ GUARDED_BY(mutex_);
};

absl::Status GenerateCall::Read(const HttpRequest& call, v1::GenerateRequest& request) {
  ASSIGN_OR_RETURN(const std::string_view message, OnlyMessage(call.body, kGrpcMessageBytesMax));
  RETURN_IF_ERROR(form_.parse(message, request));
  if (call.head.Find("x-penstock-explain") != nullptr) request.mutable_output()->set_explain(true);
  ASSIGN_OR_RETURN(deadline_, DeadlineOf(call.head));
  return absl::OkStatus();
}

absl::Status GenerateCall::Admit(const GrpcGenerateArgs& args) {
  const TimePoint received = args.core.clock().Now();
  ASSIGN_OR_RETURN(EntryTicket ticket, args.core.Enter(args.caller, form_.endpoint));
  v1::GenerateRequest request;
  if (const absl::Status read = Read(args.request, request); !read.ok()) {
    args.core.CountUnread(form_.endpoint, read);
    return read;
  }
  ASSIGN_OR_RETURN(admitted_, args.core.Admit({.request = request,
                                               .ticket = std::move(ticket),
                                               .received = received,
                                               .trace = TraceOf(args.request.head),
                                               .deadline = deadline_,
                                               .client = *this}));
  return absl::OkStatus();
}

void GenerateCall::Start() {
  {
    MutexLock lock(mutex_);
    self_ = shared_from_this();
    if (form_.respond != nullptr) collector_.emplace(admitted_.choices);
    ArmDeadline();
  }
  exchange_->OnClientLeft([weak = weak_from_this(), deadline = deadline_] {
    const std::shared_ptr<GenerateCall> call = weak.lock();
    if (call == nullptr) return;
    // A client also leaves when its deadline passes, possibly before the timer here fires.
    const bool late = deadline <= SteadyClock().Now();
    call->End(late ? DeadlineExceeded("the request's deadline has passed")
                   : Cancelled("the client has cancelled the request"));
  });
  admitted_.driver->Start();
}

void GenerateCall::ArmDeadline() {
  if (deadline_ == TimePoint::max()) return;
  deadline_timer_.Set(deadline_ - SteadyClock().Now(), [weak = weak_from_this()] {
    const std::shared_ptr<GenerateCall> call = weak.lock();
    if (call != nullptr) call->End(DeadlineExceeded("the request's deadline has passed"));
  });
}

void GenerateCall::Send(v1::GenerateResponse response) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (collector_) return collector_->Add(std::move(response));
    const bool waits = !backlog_.empty();
    backlog_.Add(std::move(response));
    if (waits) return;  // The connection has been woken already.
    first = !std::exchange(answered_, true);
  }
  if (!first) return exchange_->Wake();
  exchange_->Stream(AnswerHead(), shared_from_this());
}

void GenerateCall::Finish(const absl::Status& status) {
  std::shared_ptr<GenerateCall> self;
  MutexLock lock(mutex_);
  deadline_timer_.Clear();
  self.swap(self_);
  ending_ = status;
  if (answered_) return exchange_->Wake();
  answered_ = true;
  if (!status.ok()) return Respond(*exchange_, status);
  if (!collector_) return exchange_->Stream(AnswerHead(), shared_from_this());  // without messages
  form_.respond(collector_->Take(), *exchange_);
}

BodySource::State GenerateCall::Pull(std::string& out, size_t max) {
  MutexLock lock(mutex_);
  while (out.size() < max) {
    const std::optional<v1::GenerateResponse> next = backlog_.Take();
    if (!next) break;
    AppendFrame(*next, out);
  }
  return backlog_.empty() && ending_ ? State::kEnd : State::kMore;
}

std::vector<HttpHeader> GenerateCall::Trailers() {
  MutexLock lock(mutex_);
  return StatusTrailers(*ending_);
}

}  // namespace

const GenerateForm& GenerateStreamForm() {
  static constexpr GenerateForm kForm = {Endpoint::kGenerate, ParseGenerate, nullptr};
  return kForm;
}

const GenerateForm& GenerateUnaryForm() {
  static constexpr GenerateForm kForm = {Endpoint::kGenerateUnary, ParseGenerate, RespondWhole};
  return kForm;
}

const GenerateForm& WarmPrefixForm() {
  static constexpr GenerateForm kForm = {Endpoint::kWarmPrefix, ParseWarmPrefix, RespondWarm};
  return kForm;
}

void StartGrpcGenerate(const GrpcGenerateArgs& args) {
  const auto call = std::make_shared<GenerateCall>(args.form, args.exchange);
  if (const absl::Status admitted = call->Admit(args); !admitted.ok()) {
    return Respond(*args.exchange, admitted);
  }
  call->Start();
}

}  // namespace penstock
