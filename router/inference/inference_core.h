#pragma once

#include <memory>
#include <set>
#include <string>

#include "router/admission/entry_ticket.h"
#include "router/admission/open_requests.h"
#include "router/fleet/fleet.h"
#include "router/request/served_model.h"
#include "router/session/session_driver.h"
#include "router/session/session_request.h"
#include "router/trace/span_exporter.h"

namespace penstock {

// Room router/inference: the entry that every public protocol drives. It admits, checks and
// prepares a request and starts its session. It knows messages of inference.proto and may not know
// any wire format: no HTTP, gRPC or OpenAI types.

struct InferenceCoreArgs {
  const ServedModel& model;  // this and what follows outlive the core
  Fleet& fleet;
  OpenRequests& open;
  const Clock& clock;
  SessionLimits limits;
  RequestMetrics& metrics;
  SpanExporter* spans = nullptr;  // nullptr: none are exported
};

// An admitted request: its session, which answers the sink that it was admitted with. Nothing
// happens before driver->Start().
struct AdmittedRequest {
  std::shared_ptr<SessionDriver> driver;  // shared with the calls to workers
  uint32_t choices = 0;
  uint32_t prompt_tokens = 0;
};

struct AdmitArgs {
  const v1::GenerateRequest& request;
  EntryTicket ticket;  // from Enter
  TimePoint received;
  TraceContext trace = {};  // the caller's
  TimePoint deadline = TimePoint::max();
  ClientSink& client;  // valid until its Finish
};

// A request that another party may send to this router, to ask what would happen to it.
struct ForeseeArgs {
  const v1::GenerateRequest& request;
  Caller caller;
  TimePoint received;
};

// The operations of the public API, without a wire format. Any thread.
class InferenceCore {
 public:
  explicit InferenceCore(const InferenceCoreArgs& args) : args_(args) {}

  // Counts the request against max_requests and its tenant's limits. Call it before the request is
  // parsed: a refusal costs little then. Errors of OpenRequests::Enter and Tenant::Enter.
  absl::StatusOr<EntryTicket> Enter(const Caller& caller, Endpoint endpoint);
  // The same for Tokenize and Detokenize, whose requests are not in the metrics of requests.
  absl::StatusOr<EntryTicket> EnterText(const Caller& caller);
  // Counts a request that has entered and could not be parsed. Admit counts its own refusals.
  void CountUnread(Endpoint endpoint, const absl::Status& status);
  // Checks, tokenizes and prepares. Errors carry an ErrorDetail.
  absl::StatusOr<AdmittedRequest> Admit(AdmitArgs args);

  // Checks and tokenizes as Admit does, and returns the placement that the request would get now.
  // It charges, counts and reserves nothing. RESOURCE_EXHAUSTED when the router would refuse it; if
  // it would wait in the admission queue, the outlook has no workers.
  absl::StatusOr<PlacementOutlook> Foresee(const ForeseeArgs& args);

  // Charge the tokens to the ticket's tenant. `ticket` is from EnterText.
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                                const EntryTicket& ticket);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                    const EntryTicket& ticket);
  v1::ListModelsResponse ListModels();

  // WorkerTable::numerics.
  std::set<std::string> Numerics() const { return args_.fleet.table().numerics(); }

  const ServedModel& model() const { return args_.model; }
  const Clock& clock() const { return args_.clock; }
  // True when a request could be placed now.
  bool ready() const { return args_.fleet.table().ready(); }
  // UNAVAILABLE with kReasonNoWorker, and the number of ready workers of each role, unless ready().
  absl::Status CheckReady() const;

 private:
  absl::StatusOr<EntryTicket> TakeTicket(const Caller& caller, Endpoint endpoint);
  void Charge(const Caller& caller, uint64_t tokens);
  absl::StatusOr<PreparedRequest> Prepare(const v1::GenerateRequest& request, const Caller& caller,
                                          const TraceContext& trace, TimePoint received);
  // The longest context that both the model and the workers take.
  uint32_t MaxModelLen() const;

  const InferenceCoreArgs args_;
};

}  // namespace penstock
