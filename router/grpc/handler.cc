#include "router/grpc/handler.h"

#include <algorithm>
#include <array>

#include "router/grpc/answer.h"
#include "router/grpc/call_head.h"
#include "router/grpc/frame.h"
#include "router/grpc/generate_call.h"
#include "router/grpc/reflection.h"
#include "router/request/message_check.h"

namespace penstock {
namespace {

using grpc_standard::v1::HealthCheckRequest;
using grpc_standard::v1::HealthCheckResponse;

constexpr std::array kServices = {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                                  "grpc.reflection.v1alpha.ServerReflection",
                                  "penstock.v1.Inference"};

absl::Status ParseOnly(const HttpRequest& request, google::protobuf::Message& message) {
  ASSIGN_OR_RETURN(const std::string_view bytes, OnlyMessage(request.body, kGrpcMessageBytesMax));
  return ParseChecked(bytes, message);
}

}  // namespace

struct GrpcHandler::Method {
  using Call = absl::Status (GrpcHandler::*)(const HttpRequest&, const std::shared_ptr<Exchange>&);

  std::string_view path;
  Call call;              // nullptr: reflection, a stream of requests
  bool needs_key = true;  // where keys are needed
};

GrpcHandler::GrpcHandler(const GrpcHandlerArgs& args)
    : args_(args), streams_(args.standing_streams_max) {}

const GrpcHandler::Method* GrpcHandler::Find(std::string_view path) const {
  static constexpr std::array kMethods = {
      Method{"/penstock.v1.Inference/Generate", &GrpcHandler::Generate},
      Method{"/penstock.v1.Inference/GenerateUnary", &GrpcHandler::GenerateUnary},
      Method{"/penstock.v1.Inference/WarmPrefix", &GrpcHandler::WarmPrefix},
      Method{"/penstock.v1.Inference/Tokenize", &GrpcHandler::Tokenize},
      Method{"/penstock.v1.Inference/Detokenize", &GrpcHandler::Detokenize},
      Method{"/penstock.v1.Inference/ListModels", &GrpcHandler::ListModels},
      Method{"/grpc.health.v1.Health/Check", &GrpcHandler::CheckHealth, /*needs_key=*/false},
      Method{"/grpc.health.v1.Health/Watch", &GrpcHandler::WatchHealth, /*needs_key=*/false},
      Method{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", nullptr},
      Method{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", nullptr},
  };
  const auto found = std::find_if(kMethods.begin(), kMethods.end(),
                                  [&](const Method& method) { return method.path == path; });
  if (found == kMethods.end() || (found->call == nullptr && !args_.reflection)) return nullptr;
  return &*found;
}

absl::StatusOr<Caller> GrpcHandler::Authenticate(const HttpHead& head) const {
  if (args_.keys == nullptr) return Caller{};
  return args_.keys->Authenticate(head.Find("authorization"));
}

// A caller without a key can only call health, and does not learn which methods exist.
absl::Status GrpcHandler::Check(const HttpHead& head) const {
  RETURN_IF_ERROR(CheckTrailersPass(head));
  const Method* method = Find(head.path);
  if (method == nullptr || method->needs_key) RETURN_IF_ERROR(Authenticate(head).status());
  if (method == nullptr) {
    return absl::UnimplementedError(fmt::format("there is no method {}", head.path.substr(0, 128)));
  }
  return DeadlineOf(head).status();
}

std::optional<HttpResponse> GrpcHandler::Screen(const HttpHead& head) {
  if (auto other = RefuseOtherThanGrpc(head)) return other;
  const absl::Status status = Check(head);
  if (status.ok()) return std::nullopt;
  return TrailersOnly(status);
}

std::string GrpcHandler::AccountOf(const HttpHead& head) {
  if (!Find(head.path)->needs_key) return "";
  const absl::StatusOr<Caller> caller = Authenticate(head);
  return caller.ok() ? AccountOfCaller(*caller) : "";
}

std::shared_ptr<BodySink> GrpcHandler::Open(const HttpHead& head,
                                            const std::shared_ptr<Exchange>& exchange) {
  if (Find(head.path)->call != nullptr) return nullptr;
  return OpenReflection({kServices.begin(), kServices.end()}, streams_, exchange);
}

void GrpcHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (exchange->client_left()) return;
  const Method& method = *Find(request.head.path);
  const absl::Status status = (this->*method.call)(request, exchange);
  if (!status.ok()) Respond(*exchange, status);
}

HttpResponse GrpcHandler::Refuse(int status, const std::string& message) {
  if (status != 413) return TrailersOnly(absl::Status(CodeOfHttpStatus(status), message));
  return TrailersOnly(ResourceExhausted("the message is larger than the {} bytes it may have",
                                        kGrpcMessageBytesMax));
}

absl::Status GrpcHandler::StartGenerate(const HttpRequest& request,
                                        const std::shared_ptr<Exchange>& exchange,
                                        const GenerateForm& form) {
  ASSIGN_OR_RETURN(Caller caller, Authenticate(request.head));
  StartGrpcGenerate({.core = args_.core,
                     .form = form,
                     .caller = std::move(caller),
                     .request = request,
                     .exchange = exchange});
  return absl::OkStatus();
}

absl::Status GrpcHandler::Generate(const HttpRequest& request,
                                   const std::shared_ptr<Exchange>& exchange) {
  return StartGenerate(request, exchange, GenerateStreamForm());
}

absl::Status GrpcHandler::GenerateUnary(const HttpRequest& request,
                                        const std::shared_ptr<Exchange>& exchange) {
  return StartGenerate(request, exchange, GenerateUnaryForm());
}

absl::Status GrpcHandler::WarmPrefix(const HttpRequest& request,
                                     const std::shared_ptr<Exchange>& exchange) {
  return StartGenerate(request, exchange, WarmPrefixForm());
}

absl::Status GrpcHandler::Tokenize(const HttpRequest& request,
                                   const std::shared_ptr<Exchange>& exchange) {
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(request.head));
  ASSIGN_OR_RETURN(const EntryTicket ticket, args_.core.EnterText(caller));
  v1::TokenizeRequest asked;
  RETURN_IF_ERROR(ParseOnly(request, asked));
  ASSIGN_OR_RETURN(const v1::TokenizeResponse answer, args_.core.Tokenize(asked, ticket));
  Respond(*exchange, answer);
  return absl::OkStatus();
}

absl::Status GrpcHandler::Detokenize(const HttpRequest& request,
                                     const std::shared_ptr<Exchange>& exchange) {
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(request.head));
  ASSIGN_OR_RETURN(const EntryTicket ticket, args_.core.EnterText(caller));
  v1::DetokenizeRequest asked;
  RETURN_IF_ERROR(ParseOnly(request, asked));
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse answer, args_.core.Detokenize(asked, ticket));
  Respond(*exchange, answer);
  return absl::OkStatus();
}

absl::Status GrpcHandler::ListModels(const HttpRequest& request,
                                     const std::shared_ptr<Exchange>& exchange) {
  v1::ListModelsRequest asked;
  RETURN_IF_ERROR(ParseOnly(request, asked));
  Respond(*exchange, args_.core.ListModels());
  return absl::OkStatus();
}

absl::Status GrpcHandler::CheckHealth(const HttpRequest& request,
                                      const std::shared_ptr<Exchange>& exchange) {
  HealthCheckRequest asked;
  RETURN_IF_ERROR(ParseOnly(request, asked));
  HealthCheckResponse answer;
  ASSIGN_OR_RETURN(const HealthBoard::Status status, health_.Check(asked.service()));
  answer.set_status(status);
  Respond(*exchange, answer);
  return absl::OkStatus();
}

absl::Status GrpcHandler::WatchHealth(const HttpRequest& request,
                                      const std::shared_ptr<Exchange>& exchange) {
  HealthCheckRequest asked;
  RETURN_IF_ERROR(ParseOnly(request, asked));
  health_.Watch(asked.service(), exchange);
  return absl::OkStatus();
}

}  // namespace penstock
