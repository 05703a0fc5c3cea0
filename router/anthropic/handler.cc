#include "router/anthropic/handler.h"

#include "router/anthropic/error.h"
#include "router/anthropic/message_writer.h"
#include "router/anthropic/request.h"
#include "router/api/answer_call.h"
#include "router/api/error_parts.h"
#include "router/api/http_fields.h"
#include "router/request/structured.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kCountPath = "/v1/messages/count_tokens";

bool IsOwnPath(std::string_view path) { return path == kMessagesPath || path == kCountPath; }

MessageStyle StyleOfMessage(const MessageRequest& request, const ServedModel& model,
                            const std::string& request_id) {
  return {.id = fmt::format("msg_{:016x}", RandomU64()),
          .model = model.name,
          .request_id = request_id,
          .max_tokens = request.generate.stop().max_tokens(),
          .ttl_s = request.ttl_s};
}

}  // namespace

absl::StatusOr<Caller> MessageCaller(KeyRing* keys, const HttpHead& head) {
  if (keys == nullptr) return Caller{};
  const std::string* key = head.Find("x-api-key");
  if (key == nullptr) return keys->Authenticate(head.Find("authorization"));
  const std::string bearer = "Bearer " + *key;
  return keys->Authenticate(&bearer);
}

std::optional<HttpResponse> AnthropicHandler::Screen(const HttpHead& head) {
  if (!IsOwnPath(head.path)) return args_.next.Screen(head);
  if (const auto caller = Authenticate(head); !caller.ok()) {
    return MessageErrorResponse(caller.status(), "");
  }
  if (head.method != "POST") {
    HttpResponse refusal =
        MessageErrorResponse(405, fmt::format("{}: method not allowed; use POST", head.path), "");
    refusal.headers.push_back({"allow", "POST"});
    return refusal;
  }
  // Protects from cross-site requests, as for OpenAI's API.
  if (IsJsonBody(head)) return std::nullopt;
  return MessageErrorResponse(415, "the body must be JSON, with Content-Type: application/json",
                              "");
}

std::string AnthropicHandler::AccountOf(const HttpHead& head) {
  if (!IsOwnPath(head.path)) return args_.next.AccountOf(head);
  const absl::StatusOr<Caller> caller = Authenticate(head);
  return caller.ok() ? AccountOfCaller(*caller) : "";
}

void AnthropicHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (!IsOwnPath(request.head.path)) {
    return args_.next.Handle(std::move(request), std::move(exchange));
  }
  if (exchange->client_left()) return;
  const absl::StatusOr<std::string> id = RequestIdOf(request.head);
  if (!id.ok()) return exchange->Respond(MessageErrorResponse(id.status(), ""));
  if (request.head.path == kMessagesPath) return CreateMessage(request, *id, exchange);
  absl::StatusOr<HttpResponse> counted = CountTokens(request, *id);
  exchange->Respond(counted.ok() ? *std::move(counted)
                                 : MessageErrorResponse(counted.status(), *id));
}

HttpResponse AnthropicHandler::Refuse(int status, const std::string& message) {
  return args_.next.Refuse(status, message);
}

void AnthropicHandler::CreateMessage(const HttpRequest& request, const std::string& id,
                                     const std::shared_ptr<Exchange>& exchange) {
  const TimePoint received = args_.core.clock().Now();
  const auto refuse = [&](const absl::Status& status) {
    exchange->Respond(MessageErrorResponse(status, id));
  };
  absl::StatusOr<Caller> caller = Authenticate(request.head);
  if (!caller.ok()) return refuse(caller.status());
  absl::StatusOr<EntryTicket> ticket = args_.core.Enter(*caller, Endpoint::kMessages);
  if (!ticket.ok()) return refuse(ticket.status());
  const auto read = [&]() -> absl::StatusOr<MessageRequest> {
    ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
    return ParseMessageRequest(body, request.body);
  };
  absl::StatusOr<MessageRequest> parsed = read();
  if (!parsed.ok()) {
    args_.core.CountUnread(Endpoint::kMessages, parsed.status());
    return refuse(parsed.status());
  }
  parsed->generate.set_client_request_id(id);
  StartAnswerCall(
      {.core = args_.core,
       .prompts = {parsed->generate},
       .stream = parsed->stream,
       .ticket = *std::move(ticket),
       .request_id = id,
       .request_id_header = "request-id",
       .trace = TraceOf(request.head),
       .received = received,
       .limit = args_.request_limit,
       .exchange = exchange,
       .format = [style = StyleOfMessage(*parsed, args_.core.model(), id)](
                     uint32_t, uint32_t) { return std::make_unique<MessageWriter>(style); },
       .error =
           [id](const absl::Status& status) {
             return MessageErrorResponse(
                 RenameFields(status, {{kStructuredField, kMessageSchemaField}}), id);
           }});
}

absl::StatusOr<HttpResponse> AnthropicHandler::CountTokens(const HttpRequest& request,
                                                           const std::string& id) {
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(request.head));
  ASSIGN_OR_RETURN(const EntryTicket ticket, args_.core.EnterText(caller));
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  ASSIGN_OR_RETURN(const v1::TokenizeRequest parsed, ParseCountRequest(body, request.body));
  ASSIGN_OR_RETURN(const v1::TokenizeResponse answer, args_.core.Tokenize(parsed, ticket));
  return HttpResponse{.status = 200,
                      .headers = {{"content-type", "application/json"}, {"request-id", id}},
                      .body = fmt::format(R"({{"input_tokens":{}}})", answer.count())};
}

}  // namespace penstock
