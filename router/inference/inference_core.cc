#include "router/inference/inference_core.h"

#include <algorithm>

#include "base/log/log.h"
#include "router/request/error_detail.h"
#include "router/session/entropy.h"
#include "router/session/model_calls.h"
#include "router/session/session_request.h"

namespace penstock {

uint32_t InferenceCore::MaxModelLen() const {
  const uint32_t of_workers = args_.fleet.table().max_model_len();
  return of_workers == 0 ? args_.model.max_model_len
                         : std::min(of_workers, args_.model.max_model_len);
}

absl::Status InferenceCore::CheckReady() const {
  if (ready()) return absl::OkStatus();
  int prefill_ready = 0, prefill_known = 0, decode_ready = 0, decode_known = 0;
  for (const auto& [kind, count] : args_.fleet.table().Counts()) {
    const auto& [role, state] = kind;
    (role == "prefill" ? prefill_known : decode_known) += count;
    if (state == "ready") (role == "prefill" ? prefill_ready : decode_ready) += count;
  }
  const bool mismatch = prefill_ready > 0 && decode_ready > 0;
  return WithDetail(
      Unavailable("not ready: {} of {} prefill workers, {} of {} decode workers ready{}",
                  prefill_ready, prefill_known, decode_ready, decode_known,
                  mismatch ? ", none with the same model and KV format" : ""),
      {.reason = kReasonNoWorker});
}

absl::StatusOr<EntryTicket> InferenceCore::Enter(const Caller& caller, Endpoint endpoint) {
  auto ticket = TakeTicket(caller, endpoint);
  if (!ticket.ok()) {
    args_.metrics.OnRefused(endpoint, ticket.status());
    LogDebug("request_rejected", "{}", Message(ticket.status()));
  }
  return ticket;
}

absl::StatusOr<EntryTicket> InferenceCore::EnterText(const Caller& caller) {
  auto ticket = TakeTicket(caller, Endpoint::kGenerate);
  if (!ticket.ok()) args_.metrics.CountRefusal(ticket.status());
  return ticket;
}

void InferenceCore::Charge(const Caller& caller, uint64_t tokens) {
  if (caller.tenant != nullptr) caller.tenant->Charge(tokens, args_.clock.Now());
}

void InferenceCore::CountUnread(Endpoint endpoint, const absl::Status& status) {
  args_.metrics.OnRefused(endpoint, status);
  LogDebug("request_refused", "{}", Message(status));
}

absl::StatusOr<EntryTicket> InferenceCore::TakeTicket(const Caller& caller, Endpoint endpoint) {
  EntryTicket ticket{.endpoint = endpoint, .caller = caller};
  ASSIGN_OR_RETURN(ticket.slot, args_.open.Enter());
  if (caller.tenant == nullptr) return ticket;
  RETURN_IF_ERROR(caller.tenant->Enter(args_.clock.Now()));
  ticket.tenant_slot =
      std::shared_ptr<void>(nullptr, [tenant = caller.tenant](void*) { tenant->Leave(); });
  return ticket;
}

absl::StatusOr<PreparedRequest> InferenceCore::Prepare(const v1::GenerateRequest& request,
                                                       const Caller& caller,
                                                       const TraceContext& trace,
                                                       TimePoint received) {
  return PrepareRequest({.request = request,
                         .model = args_.model,
                         .max_model_len = MaxModelLen(),
                         .caller = caller,
                         .kv_methods = [this] { return args_.fleet.table().kv_methods(); },
                         .random = RandomU64(),
                         .trace = trace,
                         .received = received});
}

absl::StatusOr<PlacementOutlook> InferenceCore::Foresee(const ForeseeArgs& args) {
  RETURN_IF_ERROR(args_.open.Check());
  ASSIGN_OR_RETURN(const PreparedRequest prepared,
                   Prepare(args.request, args.caller, {}, args.received));
  WorkerTable& table = args_.fleet.table();
  PromptIds named = NamePrompt(prepared.session, table.block_space());
  auto outlook = table.Foresee({.need = NeedOfNew(prepared.session, args_.clock.Now()),
                                .ids = std::move(named.ids),
                                .decode_ids = std::move(named.decode_ids),
                                .random = RandomU64()});
  const bool waits = DetailOf(outlook.status()).reason == kReasonOverloaded;
  if (outlook.ok() || !waits) return outlook;
  if (args_.limits.queue_wait > Duration::zero() && !args_.fleet.order().full()) {
    return PlacementOutlook{};
  }
  return outlook.status();
}

absl::StatusOr<AdmittedRequest> InferenceCore::Admit(AdmitArgs args) {
  const TraceContext trace =
      ContinueTrace(std::move(args.trace),
                    {.trace_high = RandomU64(), .trace_low = RandomU64(), .span = RandomU64()});
  auto prepared_or = Prepare(args.request, args.ticket.caller, trace, args.received);
  if (!prepared_or.ok()) {
    args_.metrics.OnRefused(args.ticket.endpoint, prepared_or.status());
    LogRequest(LogLevel::kDebug, {args.request.client_request_id(), trace.trace_id},
               "request_refused",
               {{"status", absl::StatusCodeToString(prepared_or.status().code())},
                {"error", Message(prepared_or.status())}});
    return prepared_or.status();
  }
  PreparedRequest& prepared = *prepared_or;
  args_.metrics.OnPrepared(args_.clock.Now() - args.received);
  AdmittedRequest admitted{.choices = prepared.session.answer.answers,
                           .prompt_tokens = static_cast<uint32_t>(prepared.session.prompt.size())};
  Charge(args.ticket.caller, admitted.prompt_tokens);
  admitted.driver =
      std::make_shared<SessionDriver>(SessionDriverArgs{.request = std::move(prepared.session),
                                                        .stops = std::move(prepared.stops),
                                                        .tokenizer = *args_.model.tokenizer,
                                                        .limits = args_.limits,
                                                        .fleet = args_.fleet,
                                                        .clock = args_.clock,
                                                        .deadline = args.deadline,
                                                        .client = args.client,
                                                        .entry = std::move(args.ticket),
                                                        .metrics = args_.metrics,
                                                        .spans = args_.spans});
  return admitted;
}

absl::StatusOr<v1::TokenizeResponse> InferenceCore::Tokenize(const v1::TokenizeRequest& request,
                                                             const EntryTicket& ticket) {
  auto answer = penstock::Tokenize(request, args_.model, MaxModelLen());
  if (answer.ok()) Charge(ticket.caller, answer->count());
  return answer;
}

absl::StatusOr<v1::DetokenizeResponse> InferenceCore::Detokenize(
    const v1::DetokenizeRequest& request, const EntryTicket& ticket) {
  Charge(ticket.caller, static_cast<uint64_t>(request.token_ids_size()));
  return penstock::Detokenize(request, args_.model);
}

v1::ListModelsResponse InferenceCore::ListModels() {
  v1::ListModelsResponse models;
  v1::Model& model = *models.add_models();
  model.set_id(args_.model.name);
  model.set_max_model_len(MaxModelLen());
  model.set_block_size(args_.fleet.table().block_tokens());
  model.set_ready(ready());
  for (const std::string& alias : args_.model.aliases) {
    v1::Model& same = *models.add_models();
    same = models.models(0);
    same.set_id(alias);
  }
  return models;
}

}  // namespace penstock
