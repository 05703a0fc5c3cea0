#include "router/service.h"

#include <grpcpp/support/server_callback.h>

#include "base/rpc_server.h"
#include "base/rpc_trace.h"
#include "proto/inference.grpc.pb.h"
#include "router/answer_backlog.h"
#include "router/message_check.h"

namespace penstock {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return ByteBuffer(&slice, 1);
}

absl::Status FromBytes(const ByteBuffer& bytes, google::protobuf::Message& message) {
  grpc::Slice slice;
  const grpc::Status status = bytes.DumpToSingleSlice(&slice);
  if (!status.ok()) return FromGrpcStatus(status);
  return ParseChecked({reinterpret_cast<const char*>(slice.begin()), slice.size()}, message);
}

absl::StatusOr<Caller> Authenticate(const InferenceServiceArgs& args,
                                    const CallbackServerContext& context) {
  if (args.keys == nullptr) return Caller{};
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) return args.keys->Authenticate(nullptr);
  const std::string value(found->second.data(), found->second.size());
  return args.keys->Authenticate(&value);
}

absl::Status ParseGenerate(const ByteBuffer& bytes, v1::GenerateRequest& request) {
  return FromBytes(bytes, request);
}

// Warming is generating the one token that every prefill gives, and keeping the prompt.
absl::Status ParseWarmPrefix(const ByteBuffer& bytes, v1::GenerateRequest& request) {
  v1::WarmPrefixRequest warm;
  RETURN_IF_ERROR(FromBytes(bytes, warm));
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

ByteBuffer WarmPrefixAnswer(v1::GenerateUnaryResponse response) {
  v1::WarmPrefixResponse answer;
  answer.set_request_id(response.request_id());
  *answer.mutable_usage() = std::move(*response.mutable_usage());
  answer.mutable_usage()->set_completion_tokens(0);
  return ToBytes(answer);
}

// A method's name in metrics, and how its message stands for a request.
struct RequestForm {
  Endpoint endpoint;
  absl::Status (*parse)(const ByteBuffer& bytes, v1::GenerateRequest& request);
};

// Takes a place, parses and checks a request, and prepares its session, which answers to `client`.
absl::StatusOr<AdmittedRequest> Admit(const InferenceServiceArgs& args, const ByteBuffer& bytes,
                                      const RequestForm& form, const CallbackServerContext& context,
                                      ClientSink& client) {
  InferenceCore& core = args.core;
  const TimePoint received = core.clock().Now();
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(args, context));
  ASSIGN_OR_RETURN(EntryTicket ticket, core.Enter(caller, form.endpoint));
  v1::GenerateRequest request;
  if (const absl::Status parsed = form.parse(bytes, request); !parsed.ok()) {
    core.CountUnread(form.endpoint, parsed);
    return parsed;
  }
  if (context.client_metadata().contains("x-penstock-explain")) {
    request.mutable_output()->set_explain(true);
  }
  return core.Admit({.request = request,
                     .ticket = std::move(ticket),
                     .received = received,
                     .trace = TraceOf(context.client_metadata()),
                     .deadline = context.deadline(),
                     .client = client});
}

constexpr RequestForm kGenerateForm = {Endpoint::kGenerate, ParseGenerate};

// Why gRPC says that a call is cancelled.
absl::Status WhyGone(const CallbackServerContext& context) {
  if (context.deadline() <= std::chrono::system_clock::now()) {
    return DeadlineExceeded("the request's deadline has passed");
  }
  return Cancelled("the client has cancelled the request");
}

// One Generate. gRPC calls it until OnDone; `self_` keeps it alive until then. Nothing is written
// before the first token, and so no initial metadata either.
class StreamCall final : public grpc::ServerWriteReactor<ByteBuffer>, private ClientSink {
 public:
  StreamCall(const InferenceServiceArgs& args, CallbackServerContext& context)
      : context_(context), clock_(args.core.clock()), stall_(args.client_stall) {}

  static StreamCall* Begin(const InferenceServiceArgs& args, CallbackServerContext& context,
                           const ByteBuffer& request) {
    const auto call = std::make_shared<StreamCall>(args, context);
    call->self_ = call;
    auto admitted = Admit(args, request, kGenerateForm, context, *call);
    if (admitted.ok()) {
      call->admitted_ = *std::move(admitted);
      call->admitted_.driver->Start();
    } else {
      call->Finish(admitted.status());
    }
    return call.get();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) backlog_.Clear();  // OnCancel follows, or has come
    WriteNext();
  }

  void OnCancel() override {
    if (admitted_.driver != nullptr) admitted_.driver->OnClientGone(WhyGone(context_));
  }

  void OnDone() override {
    // Only a callback of the timer may hold another reference.
    const std::shared_ptr<StreamCall> self = std::move(self_);
    admitted_ = {};
  }

 private:
  void Send(v1::GenerateResponse response) override {
    MutexLock lock(mutex_);
    backlog_.Add(std::move(response));
    if (writing_) return WatchForStall();
    WriteNext();
  }

  void Finish(const absl::Status& status) override {
    MutexLock lock(mutex_);
    ending_ = status;
    if (writing_) return WatchForStall();
    WriteNext();
  }

  void WriteNext() REQUIRES(mutex_) {
    if (std::optional<v1::GenerateResponse> next = backlog_.Take()) {
      bytes_ = ToBytes(*next);
      writing_ = true;
      written_at_ = clock_.Now();
      StartWrite(&bytes_);
    } else if (ending_) {
      timer_.Clear();
      grpc::ServerWriteReactor<ByteBuffer>::Finish(ToGrpcStatus(*ending_));
    }
  }

  // Something waits behind a write. Armed once; looks again until the write or the call is done.
  void WatchForStall() REQUIRES(mutex_) {
    if (watching_) return;
    watching_ = true;
    ArmStallTimer(stall_);
  }

  void ArmStallTimer(Duration from_now) REQUIRES(mutex_) {
    timer_.Set(from_now, [weak = std::weak_ptr<StreamCall>(self_)] {
      if (const std::shared_ptr<StreamCall> call = weak.lock()) call->OnStallTimer();
    });
  }

  void OnStallTimer() {
    MutexLock lock(mutex_);
    watching_ = false;
    if (!writing_) return;  // also after OnDone, when there is no context any more
    const Duration since = clock_.Now() - written_at_;
    if (since >= stall_) {
      context_.TryCancel();
    } else {
      watching_ = true;
      ArmStallTimer(stall_ - since);
    }
  }

  CallbackServerContext& context_;
  const Clock& clock_;
  const Duration stall_;
  AdmittedRequest admitted_;

  Mutex mutex_;
  AnswerBacklog backlog_ GUARDED_BY(mutex_);
  ByteBuffer bytes_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool watching_ GUARDED_BY(mutex_) = false;
  TimePoint written_at_ GUARDED_BY(mutex_);
  std::optional<absl::Status> ending_ GUARDED_BY(mutex_);
  Timer timer_ GUARDED_BY(mutex_);
  std::shared_ptr<StreamCall> self_;
};

// How a unary call's messages stand for a request and its whole answer.
struct UnaryForm {
  RequestForm request;
  ByteBuffer (*answer)(v1::GenerateUnaryResponse response);
};
constexpr UnaryForm kGenerateUnary = {
    {Endpoint::kGenerateUnary, ParseGenerate},
    [](v1::GenerateUnaryResponse response) { return ToBytes(response); }};
constexpr UnaryForm kWarmPrefix = {{Endpoint::kWarmPrefix, ParseWarmPrefix}, WarmPrefixAnswer};

// The same session, its answer collected.
class UnaryCall final : public grpc::ServerUnaryReactor, private ClientSink {
 public:
  UnaryCall(const UnaryForm& form, CallbackServerContext& context, ByteBuffer& response)
      : form_(form), context_(context), response_(response) {}

  static UnaryCall* Begin(const UnaryForm& form, const InferenceServiceArgs& args,
                          CallbackServerContext& context, const ByteBuffer& request,
                          ByteBuffer& response) {
    const auto call = std::make_shared<UnaryCall>(form, context, response);
    call->self_ = call;
    auto admitted = Admit(args, request, form.request, context, *call);
    if (admitted.ok()) {
      call->admitted_ = *std::move(admitted);
      call->answer_.emplace(call->admitted_.choices);
      call->admitted_.driver->Start();
    } else {
      call->Finish(admitted.status());
    }
    return call.get();
  }

  void OnCancel() override {
    if (admitted_.driver != nullptr) admitted_.driver->OnClientGone(WhyGone(context_));
  }

  void OnDone() override {
    const std::shared_ptr<UnaryCall> self = std::move(self_);
    admitted_ = {};
  }

 private:
  void Send(v1::GenerateResponse response) override { answer_->Add(std::move(response)); }

  void Finish(const absl::Status& status) override {
    if (status.ok()) response_ = form_.answer(answer_->Take());
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
  }

  const UnaryForm form_;
  CallbackServerContext& context_;
  ByteBuffer& response_;
  AdmittedRequest admitted_;
  std::optional<AnswerCollector> answer_;  // under the driver's lock
  std::shared_ptr<UnaryCall> self_;
};

template <class Base>
using RawGenerate = v1::Inference::WithRawCallbackMethod_Generate<Base>;
template <class Base>
using RawGenerateUnary = v1::Inference::WithRawCallbackMethod_GenerateUnary<Base>;
template <class Base>
using RawWarmPrefix = v1::Inference::WithRawCallbackMethod_WarmPrefix<Base>;
template <class Base>
using RawTokenize = v1::Inference::WithRawCallbackMethod_Tokenize<Base>;
template <class Base>
using RawDetokenize = v1::Inference::WithRawCallbackMethod_Detokenize<Base>;
template <class Base>
using RawListModels = v1::Inference::WithRawCallbackMethod_ListModels<Base>;
using RawInference = RawGenerate<RawGenerateUnary<
    RawWarmPrefix<RawTokenize<RawDetokenize<RawListModels<v1::Inference::Service>>>>>>;

class InferenceService final : public RawInference {
 public:
  explicit InferenceService(const InferenceServiceArgs& args) : args_(args) {}

  grpc::ServerWriteReactor<ByteBuffer>* Generate(CallbackServerContext* context,
                                                 const ByteBuffer* request) override {
    return StreamCall::Begin(args_, *context, *request);
  }

  grpc::ServerUnaryReactor* GenerateUnary(CallbackServerContext* context, const ByteBuffer* request,
                                          ByteBuffer* response) override {
    return UnaryCall::Begin(kGenerateUnary, args_, *context, *request, *response);
  }

  grpc::ServerUnaryReactor* WarmPrefix(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return UnaryCall::Begin(kWarmPrefix, args_, *context, *request, *response);
  }

  grpc::ServerUnaryReactor* Tokenize(CallbackServerContext* context, const ByteBuffer* request,
                                     ByteBuffer* response) override {
    return Answer<v1::TokenizeRequest>(*context, *request, *response, [this](const auto& parsed) {
      return args_.core.Tokenize(parsed);
    });
  }

  grpc::ServerUnaryReactor* Detokenize(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return Answer<v1::DetokenizeRequest>(*context, *request, *response, [this](const auto& parsed) {
      return args_.core.Detokenize(parsed);
    });
  }

  grpc::ServerUnaryReactor* ListModels(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return Answer<v1::ListModelsRequest>(
        *context, *request, *response,
        [this](const auto&) -> absl::StatusOr<v1::ListModelsResponse> {
          return args_.core.ListModels();
        });
  }

 private:
  template <class Request, class Handler>
  grpc::ServerUnaryReactor* Answer(CallbackServerContext& context, const ByteBuffer& bytes,
                                   ByteBuffer& response, const Handler& handle) {
    grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
    Request request;
    absl::Status status = Authenticate(args_, context).status();
    if (status.ok()) status = FromBytes(bytes, request);
    if (status.ok()) {
      auto answer = handle(request);
      status = answer.status();
      if (answer.ok()) response = ToBytes(*answer);
    }
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  const InferenceServiceArgs args_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const InferenceServiceArgs& args) {
  return std::make_unique<InferenceService>(args);
}

}  // namespace penstock
