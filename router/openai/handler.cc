#include "router/openai/handler.h"

#include <algorithm>

#include "base/clock.h"
#include "router/api/answer_call.h"
#include "router/api/error_parts.h"
#include "router/api/http_fields.h"
#include "router/openai/answer_writer.h"
#include "router/openai/error.h"
#include "router/openai/request.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"
#include "router/request/structured.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr std::string_view kHealthPath = "/health";
constexpr std::string_view kReadyPath = "/ready";

HttpResponse JsonResponse(std::string body) {
  return {
      .status = 200, .headers = {{"content-type", "application/json"}}, .body = std::move(body)};
}

HttpResponse JsonResponse(const Json& body) { return JsonResponse(body.dump()); }

// Decodes "%2F" to '/'; nullopt when a '%' is not followed by two hexadecimal digits.
std::optional<std::string> DecodePercent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const std::string digits(text.substr(i + 1, 2));
    if (digits.size() != 2 || digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos) {
      return std::nullopt;
    }
    decoded += static_cast<char>(std::stoi(digits, nullptr, 16));
    i += 2;
  }
  return decoded;
}

// Kubernetes and proxies have no key.
bool IsProbe(const HttpHead& head) { return head.path == kHealthPath || head.path == kReadyPath; }

// Everything but the numbers that are known once the request is admitted.
AnswerStyle StyleOf(const OpenAiRequest& request, const ServedModel& model) {
  return {.chat = request.chat,
          .id = fmt::format("{}-{:016x}", request.chat ? "chatcmpl" : "cmpl", RandomU64()),
          .model = model.name,
          .created = UnixSeconds(),
          .logprobs = request.logprobs,
          .top_logprobs = request.prompts.front().output().top_logprobs(),
          .prompt_logprobs = request.prompt_logprobs,
          .return_token_ids = request.return_token_ids,
          .include_usage = request.include_usage,
          .continuous_usage = request.continuous_usage};
}

std::function<std::unique_ptr<AnswerFormat>(uint32_t, uint32_t)> FormatOf(AnswerStyle style) {
  return [style = std::move(style)](uint32_t choices, uint32_t prompt_tokens) mutable {
    style.choices = choices;
    style.prompt_tokens = prompt_tokens;
    return std::make_unique<AnswerWriter>(style);
  };
}

AnswerPlan PlanOf(OpenAiRequest request, const ServedModel& model) {
  AnswerStyle style = StyleOf(request, model);
  return {.prompts = std::move(request.prompts),
          .stream = request.stream,
          .format = FormatOf(std::move(style)),
          .names = {{kStructuredField, request.structured_field},
                    {"sampling.beam_search", "use_beam_search"},
                    {"sampling.beam_search.width", "best_of"},
                    {"sampling.beam_search.length_penalty", "length_penalty"}}};
}

absl::StatusOr<AnswerPlan> PlanChat(const Json& body, std::string_view text,
                                    const ServedModel& model) {
  ASSIGN_OR_RETURN(OpenAiRequest request, ParseChatRequest(body, text));
  return PlanOf(std::move(request), model);
}

absl::StatusOr<AnswerPlan> PlanCompletion(const Json& body, std::string_view text,
                                          const ServedModel& model) {
  ASSIGN_OR_RETURN(OpenAiRequest request, ParseCompletionRequest(body, text));
  return PlanOf(std::move(request), model);
}

Json ModelJson(const v1::Model& model, int64_t created) {
  return {{"id", model.id()},
          {"object", "model"},
          {"created", created},
          {"owned_by", "penstock"},
          {"root", model.id()},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len()}};
}

}  // namespace

struct OpenAiHandler::Route {
  using Simple = absl::StatusOr<HttpResponse> (OpenAiHandler::*)(const HttpRequest&);

  std::string_view path;
  std::string_view method = "POST";
  Simple simple = nullptr;
  AnswerRoute answers = {};  // without `simple`
};

OpenAiHandler::OpenAiHandler(OpenAiHandlerArgs args)
    : args_(std::move(args)), started_(UnixSeconds()) {
  routes_ = {
      {kModelsPath, "GET", &OpenAiHandler::Models},
      {kModelsPrefix, "GET", &OpenAiHandler::Models},
      {"/tokenize", "POST", &OpenAiHandler::Tokenize},
      {"/v1/tokenize", "POST", &OpenAiHandler::Tokenize},
      {"/detokenize", "POST", &OpenAiHandler::Detokenize},
      {"/v1/detokenize", "POST", &OpenAiHandler::Detokenize},
      {kHealthPath, "GET", &OpenAiHandler::Health},
      {kReadyPath, "GET", &OpenAiHandler::Ready},
      {"/version", "GET", &OpenAiHandler::Version},
  };
  const auto add = [this](const AnswerRoute& route) {
    routes_.push_back({.path = route.path, .answers = route});
  };
  add({"/v1/chat/completions", Endpoint::kChat, &PlanChat});
  add({"/v1/completions", Endpoint::kCompletions, &PlanCompletion});
  for (const AnswerRoute& route : args_.more_routes) add(route);
}

OpenAiHandler::~OpenAiHandler() = default;

const OpenAiHandler::Route* OpenAiHandler::Find(std::string_view path) const {
  if (path.starts_with(kModelsPrefix)) path = kModelsPrefix;
  const auto found = std::find_if(routes_.begin(), routes_.end(),
                                  [&](const Route& route) { return route.path == path; });
  return found == routes_.end() ? nullptr : &*found;
}

absl::StatusOr<Caller> OpenAiHandler::Authenticate(const HttpHead& head) {
  if (args_.keys == nullptr) return Caller{};
  return args_.keys->Authenticate(head.Find("authorization"));
}

std::optional<HttpResponse> OpenAiHandler::Screen(const HttpHead& head) {
  // A caller without a key learns only whether the server lives and serves, not even which paths
  // exist.
  if (!IsProbe(head)) {
    if (const auto caller = Authenticate(head); !caller.ok()) return ErrorResponse(caller.status());
  }
  const Route* route = Find(head.path);
  if (route == nullptr) {
    return ErrorResponse(404, fmt::format("there is no {}", head.path.substr(0, 128)));
  }
  const bool head_of_get = head.method == "HEAD" && route->method == "GET";
  if (head.method != route->method && !head_of_get) {
    HttpResponse refusal =
        ErrorResponse(405, fmt::format("{} is asked with {}", route->path, route->method));
    refusal.headers.push_back({"allow", std::string(route->method)});
    return refusal;
  }
  // Protects from cross-site requests: a page of another origin cannot send this content type
  // without a CORS preflight, which is refused unless --cors_allow_origins has the origin.
  if (route->method == "POST" && !IsJsonBody(head)) {
    return ErrorResponse(415, "the body must be JSON, with Content-Type: application/json");
  }
  return std::nullopt;
}

std::string OpenAiHandler::AccountOf(const HttpHead& head) {
  if (IsProbe(head)) return "";
  const absl::StatusOr<Caller> caller = Authenticate(head);
  return caller.ok() ? AccountOfCaller(*caller) : "";
}

void OpenAiHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (exchange->client_left()) return;
  const Route& route = *Find(request.head.path);
  if (route.simple == nullptr) return Generate(request, std::move(exchange), route.answers);
  absl::StatusOr<HttpResponse> response = (this->*route.simple)(request);
  exchange->Respond(response.ok() ? *std::move(response) : ErrorResponse(response.status()));
}

HttpResponse OpenAiHandler::Refuse(int status, const std::string& message) {
  return ErrorResponse(status, message);
}

void OpenAiHandler::Generate(const HttpRequest& request, std::shared_ptr<Exchange> exchange,
                             const AnswerRoute& route) {
  const TimePoint received = args_.core.clock().Now();
  absl::StatusOr<Caller> caller = Authenticate(request.head);
  if (!caller.ok()) return exchange->Respond(ErrorResponse(caller.status()));
  absl::StatusOr<EntryTicket> ticket = args_.core.Enter(*caller, route.endpoint);
  if (!ticket.ok()) return exchange->Respond(ErrorResponse(ticket.status()));
  const auto read = [&]() -> absl::StatusOr<AnswerCallArgs> {
    ASSIGN_OR_RETURN(const std::string id, RequestIdOf(request.head));
    ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
    ASSIGN_OR_RETURN(AnswerPlan plan, route.plan(body, request.body, args_.core.model()));
    for (v1::GenerateRequest& prompt : plan.prompts) prompt.set_client_request_id(id);
    return AnswerCallArgs{.core = args_.core,
                          .prompts = std::move(plan.prompts),
                          .prompt_names = std::move(plan.prompt_names),
                          .stream = plan.stream,
                          .ticket = *std::move(ticket),
                          .request_id = id,
                          .request_id_header = "x-request-id",
                          .trace = TraceOf(request.head),
                          .received = received,
                          .limit = args_.request_limit,
                          .exchange = exchange,
                          .format = std::move(plan.format),
                          .error = [id, names = std::move(plan.names)](const absl::Status& status) {
                            HttpResponse response = ErrorResponse(RenameFields(status, names));
                            response.headers.push_back({"x-request-id", id});
                            return response;
                          }};
  };
  absl::StatusOr<AnswerCallArgs> call = read();
  if (!call.ok()) {
    args_.core.CountUnread(route.endpoint, call.status());
    return exchange->Respond(ErrorResponse(call.status()));
  }
  StartAnswerCall(*std::move(call));
}

absl::StatusOr<HttpResponse> OpenAiHandler::Models(const HttpRequest& request) {
  const v1::ListModelsResponse models = args_.core.ListModels();
  if (!request.head.path.starts_with(kModelsPrefix)) {
    Json data = Json::array();
    for (const v1::Model& model : models.models()) data.push_back(ModelJson(model, started_));
    return JsonResponse({{"object", "list"}, {"data", std::move(data)}});
  }
  const auto wanted = DecodePercent(request.head.path.substr(kModelsPrefix.size()));
  for (const v1::Model& model : models.models()) {
    if (model.id() == wanted) return JsonResponse(ModelJson(model, started_));
  }
  const ServedModel& served = args_.core.model();
  return ModelNotFound(wanted.value_or(""), served.name, served.aliases);
}

absl::StatusOr<HttpResponse> OpenAiHandler::Tokenize(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(request.head));
  ASSIGN_OR_RETURN(const EntryTicket ticket, args_.core.EnterText(caller));
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  ASSIGN_OR_RETURN(const v1::TokenizeRequest parsed, ParseTokenizeRequest(body, request.body));
  ASSIGN_OR_RETURN(const v1::TokenizeResponse answer, args_.core.Tokenize(parsed, ticket));
  Json strings;
  if (parsed.return_strings()) {
    strings = Json::array();
    for (const std::string& token : answer.tokens()) strings.push_back(ReplaceInvalidUtf8(token));
  }
  return JsonResponse({{"count", answer.count()},
                       {"max_model_len", answer.max_model_len()},
                       {"tokens", answer.token_ids()},
                       {"token_strs", std::move(strings)}});
}

absl::StatusOr<HttpResponse> OpenAiHandler::Detokenize(const HttpRequest& request) {
  ASSIGN_OR_RETURN(const Caller caller, Authenticate(request.head));
  ASSIGN_OR_RETURN(const EntryTicket ticket, args_.core.EnterText(caller));
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  ASSIGN_OR_RETURN(const v1::DetokenizeRequest parsed, ParseDetokenizeRequest(body));
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse answer, args_.core.Detokenize(parsed, ticket));
  return JsonResponse({{"prompt", ReplaceInvalidUtf8(answer.text())}});
}

absl::StatusOr<HttpResponse> OpenAiHandler::Health(const HttpRequest&) {
  return JsonResponse({{"status", "ok"}});
}

absl::StatusOr<HttpResponse> OpenAiHandler::Ready(const HttpRequest& request) {
  if (draining_) {
    return WithDetail(Unavailable("the router is shutting down"), {.reason = kReasonDraining});
  }
  if (const absl::Status ready = args_.core.CheckReady(); !ready.ok()) {
    // How many workers there are is nothing for callers without a key, as probes are.
    if (Authenticate(request.head).ok()) return ready;
    return WithDetail(Unavailable("not ready"), {.reason = kReasonNoWorker});
  }
  return JsonResponse({{"status", "ready"}});
}

absl::StatusOr<HttpResponse> OpenAiHandler::Version(const HttpRequest&) {
  Json body = {{"version", args_.version}};
  if (const auto numerics = args_.core.Numerics(); !numerics.empty()) body["numerics"] = numerics;
  return JsonResponse(body);
}

}  // namespace penstock
