#pragma once

#include <string>

#include "http/exchange.h"
#include "router/inference/inference_core.h"
#include "router/picker/picker_metrics.h"
#include "router/picker/processing.h"
#include "router/request/key_ring.h"

namespace penstock {

struct EndpointPickerArgs {
  InferenceCore& core;      // all references outlive the picker
  HttpHandler& api;         // serves the endpoint: what it refuses is refused here
  KeyRing* keys = nullptr;  // nullptr: authentication is off
  std::string endpoint;     // ip:port of this router's HTTP port
  PickerMetrics& metrics;
};

// Decides whether this router should get a request: as its HTTP port would, it checks the caller
// and reads the body, and it asks placement for the pair of workers and the time to the first
// token. It counts outcomes. Any thread.
class EndpointPicker final : public PickRule {
 public:
  explicit EndpointPicker(EndpointPickerArgs args) : args_(std::move(args)) {}

  std::optional<HttpResponse> Screen(const HttpHead& head, const Subset& subset) override;
  std::string AccountOf(const HttpHead& head) override { return args_.api.AccountOf(head); }
  std::optional<HttpResponse> Decide(const HttpRequest& request) override;
  void OnNamed() override { args_.metrics.Count(PickOutcome::kPicked); }
  HttpResponse Refuse(int status, const std::string& message) override;

 private:
  struct Api;
  static const Api* ApiOf(const HttpHead& head);
  absl::Status Foresee(const Api& api, const HttpRequest& request);
  HttpResponse Refusal(const HttpHead& head, const absl::Status& status);

  const EndpointPickerArgs args_;
};

// The outcome that a refusal with this status counts as. Pure.
PickOutcome OutcomeOfRefusal(const absl::Status& status);

}  // namespace penstock
