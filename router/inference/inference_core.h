#pragma once

#include <memory>

#include "router/admission/entry_ticket.h"
#include "router/admission/open_requests.h"
#include "router/fleet/fleet.h"
#include "router/request/served_model.h"
#include "router/session/session_driver.h"

namespace penstock {

struct InferenceCoreArgs {
  const ServedModel& model;  // all of these outlive the core
  Fleet& fleet;
  OpenRequests& open;
  const Clock& clock;
  SessionLimits limits;
  RequestMetrics& metrics;
};

// A request that was taken in: its session, which answers to the sink it was admitted with. Nothing
// happens before driver->Start().
struct AdmittedRequest {
  std::shared_ptr<SessionDriver> driver;
  uint32_t choices = 0;
  uint32_t prompt_tokens = 0;
};

struct AdmitArgs {
  const v1::GenerateRequest& request;
  EntryTicket ticket;  // of Enter
  TimePoint received;
  TraceContext trace = {};  // the caller's
  std::chrono::system_clock::time_point deadline = std::chrono::system_clock::time_point::max();
  ClientSink& client;  // valid until its Finish
};

// What every front door offers; no wire format in it. Any thread.
class InferenceCore {
 public:
  explicit InferenceCore(const InferenceCoreArgs& args) : args_(args) {}

  // First of all, so that what is not admitted costs little.
  absl::StatusOr<EntryTicket> Enter(const Caller& caller, Endpoint endpoint);
  // Counts one that has entered and could not even be read; Admit counts what it refuses itself.
  void CountUnread(Endpoint endpoint, const absl::Status& status);
  // Checks, tokenizes and prepares. Errors carry an ErrorDetail.
  absl::StatusOr<AdmittedRequest> Admit(AdmitArgs args);

  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  v1::ListModelsResponse ListModels();

  const ServedModel& model() const { return args_.model; }
  const Clock& clock() const { return args_.clock; }
  // Whether a request could be placed now.
  bool ready() const { return args_.fleet.table().ready(); }

 private:
  absl::StatusOr<EntryTicket> TakeTicket(const Caller& caller, Endpoint endpoint);
  // The longest context that both the model and the workers take.
  uint32_t MaxModelLen() const;

  const InferenceCoreArgs args_;
};

}  // namespace penstock
