#include "router/picker/picker.h"

#include <algorithm>
#include <array>

#include "base/log/log.h"
#include "router/anthropic/error.h"
#include "router/anthropic/handler.h"
#include "router/anthropic/request.h"
#include "router/embeddings/request.h"
#include "router/openai/error.h"
#include "router/openai/request.h"
#include "router/request/error_detail.h"
#include "router/request/json.h"
#include "router/responses/request.h"

namespace penstock {
namespace {

using Prompts = std::vector<v1::GenerateRequest>;

absl::StatusOr<Prompts> ChatPrompts(const Json& body, std::string_view text) {
  ASSIGN_OR_RETURN(OpenAiRequest request, ParseChatRequest(body, text));
  return std::move(request.prompts);
}

absl::StatusOr<Prompts> CompletionPrompts(const Json& body, std::string_view text) {
  ASSIGN_OR_RETURN(OpenAiRequest request, ParseCompletionRequest(body, text));
  return std::move(request.prompts);
}

absl::StatusOr<Prompts> MessagePrompts(const Json& body, std::string_view text) {
  ASSIGN_OR_RETURN(const MessageRequest request, ParseMessageRequest(body, text));
  return Prompts{request.generate};
}

absl::StatusOr<Prompts> ResponsePrompts(const Json& body, std::string_view text) {
  ASSIGN_OR_RETURN(const ResponseRequest request, ParseResponseRequest(body, text));
  return Prompts{request.generate};
}

absl::StatusOr<Prompts> EmbeddingPrompts(const Json& body, std::string_view) {
  ASSIGN_OR_RETURN(EmbeddingRequest request, ParseEmbeddingRequest(body));
  return std::move(request.prompts);
}

absl::StatusOr<Caller> CallerOf(KeyRing* keys, const HttpHead& head) {
  if (keys == nullptr) return Caller{};
  return keys->Authenticate(head.Find("authorization"));
}

HttpResponse MessageRefusal(const absl::Status& status) { return MessageErrorResponse(status, ""); }

void SetFirstTokenLimit(Duration limit, v1::GenerateRequest& request) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  request.mutable_first_token_limit()->set_seconds(whole.count());
  request.mutable_first_token_limit()->set_nanos(static_cast<int32_t>((limit - whole).count()));
}

}  // namespace

// A path of the HTTP API whose requests generate.
struct EndpointPicker::Api {
  std::string_view path;
  // `text`: the body as it came.
  absl::StatusOr<Prompts> (*parse)(const Json& body, std::string_view text);
  absl::StatusOr<Caller> (*caller)(KeyRing* keys, const HttpHead& head);
  HttpResponse (*refusal)(const absl::Status& status);
};

const EndpointPicker::Api* EndpointPicker::ApiOf(const HttpHead& head) {
  static constexpr std::array kApis = {
      Api{"/v1/chat/completions", &ChatPrompts, &CallerOf, &ErrorResponse},
      Api{"/v1/completions", &CompletionPrompts, &CallerOf, &ErrorResponse},
      Api{"/v1/responses", &ResponsePrompts, &CallerOf, &ErrorResponse},
      Api{"/v1/embeddings", &EmbeddingPrompts, &CallerOf, &ErrorResponse},
      Api{"/v1/messages", &MessagePrompts, &MessageCaller, &MessageRefusal},
  };
  const auto found = std::find_if(kApis.begin(), kApis.end(),
                                  [&](const Api& api) { return api.path == head.path; });
  return found == kApis.end() ? nullptr : &*found;
}

PickOutcome OutcomeOfRefusal(const absl::Status& status) {
  const std::string reason = DetailOf(status).reason;
  if (reason == kReasonExcluded) return PickOutcome::kExcluded;
  if (reason == kReasonTooSlow) return PickOutcome::kLate;
  if (absl::IsUnavailable(status)) return PickOutcome::kNotReady;
  return absl::IsResourceExhausted(status) ? PickOutcome::kFull : PickOutcome::kBadRequest;
}

std::optional<HttpResponse> EndpointPicker::Screen(const HttpHead& head, const Subset& subset) {
  if (std::optional<HttpResponse> refusal = args_.api.Screen(head)) {
    args_.metrics.Count(PickOutcome::kBadRequest);
    LogDebug("pick_refused", "the API answers status {}", refusal->status);
    return refusal;
  }
  if (subset && !Includes(*subset, args_.endpoint)) {
    return Refusal(head,
                   WithDetail(Unavailable("the gateway's subset of {} endpoints does not have "
                                          "this router, {}",
                                          subset->size(), args_.endpoint),
                              {.reason = kReasonExcluded}));
  }
  if (ApiOf(head) == nullptr) return std::nullopt;
  const absl::Status ready = args_.core.CheckReady();
  if (!ready.ok()) return Refusal(head, ready);
  return std::nullopt;
}

std::optional<HttpResponse> EndpointPicker::Decide(const HttpRequest& request) {
  const Api* api = ApiOf(request.head);
  if (api == nullptr) return std::nullopt;  // it generates nothing
  const absl::Status foreseen = Foresee(*api, request);
  if (foreseen.ok()) return std::nullopt;
  return Refusal(request.head, foreseen);
}

absl::Status EndpointPicker::Foresee(const Api& api, const HttpRequest& request) {
  const TimePoint received = args_.core.clock().Now();
  ASSIGN_OR_RETURN(const Caller caller, api.caller(args_.keys, request.head));
  ASSIGN_OR_RETURN(const std::optional<Duration> limit, FirstTokenLimitOf(request.head));
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  ASSIGN_OR_RETURN(Prompts prompts, api.parse(body, request.body));
  double latest_ms = 0;
  bool waits = false;  // in the admission queue: no worker is known yet, and no time
  for (v1::GenerateRequest& prompt : prompts) {
    if (limit) SetFirstTokenLimit(*limit, prompt);
    ASSIGN_OR_RETURN(
        const PlacementOutlook outlook,
        args_.core.Foresee({.request = prompt, .caller = caller, .received = received}));
    waits |= outlook.decode_worker.empty();
    latest_ms = std::max(latest_ms, outlook.first_token_ms);
  }
  if (!waits) args_.metrics.predicted.Observe(latest_ms / 1e3);
  return absl::OkStatus();
}

HttpResponse EndpointPicker::Refuse(int status, const std::string& message) {
  const bool large = status == 413 || status == 414 || status == 431;
  args_.metrics.Count(status == 503 ? PickOutcome::kFull
                      : large       ? PickOutcome::kTooLarge
                                    : PickOutcome::kBadRequest);
  LogDebug("pick_refused", "{}", message);
  return args_.api.Refuse(status, message);
}

HttpResponse EndpointPicker::Refusal(const HttpHead& head, const absl::Status& status) {
  const PickOutcome outcome = OutcomeOfRefusal(status);
  args_.metrics.Count(outcome);
  LogDebug("pick_refused", "{}", Message(status));
  const Api* api = ApiOf(head);
  HttpResponse response = api == nullptr ? ErrorResponse(status) : api->refusal(status);
  // The endpoint picker protocol has a status of its own for two cases.
  const bool dropped = outcome == PickOutcome::kFull || outcome == PickOutcome::kLate;
  if (dropped) response.status = 429;
  if (absl::IsUnavailable(status)) response.status = 503;
  return response;
}

}  // namespace penstock
