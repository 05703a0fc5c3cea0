#pragma once

#include <deque>
#include <optional>
#include <string>

#include "http/body_budget.h"
#include "router/picker/answers.h"
#include "router/picker/gateway_message.h"

namespace penstock {

// Interface: decides about requests. Any thread.
class PickRule {
 public:
  using Subset = std::optional<std::vector<std::string>>;

  virtual ~PickRule() = default;
  // Called before the body arrives; must be fast. Returns the answer to the client if the request
  // is refused.
  virtual std::optional<HttpResponse> Screen(const HttpHead& head, const Subset& subset) = 0;
  // Names the account that the memory of the request's body is charged to.
  virtual std::string AccountOf(const HttpHead& head) = 0;
  // Called with the whole body; may compute for a while. Returns the answer to the client if the
  // request is refused.
  virtual std::optional<HttpResponse> Decide(const HttpRequest& request) = 0;
  // The gateway gets the endpoint: the request is not refused.
  virtual void OnNamed() = 0;
  // Formats an error that occurred before the body was complete.
  virtual HttpResponse Refuse(int status, const std::string& message) = 0;
};

struct ProcessingArgs {
  PickRule& rule;      // this and the budget outlive the stream
  BodyBudget& bodies;  // of all streams together
  std::string endpoint;
  HttpLimits limits;
};

// The state machine of one stream, which is one request of a client at the gateway: it collects the
// request's body, names the endpoint, gives the body back, and lets the response pass. The owner
// writes all answers (TakeAnswer) before it does what the last call has returned, so the gateway's
// messages are never more than one ahead of the answers. Pure, but for the rule; one thread at a
// time.
class Processing {
 public:
  enum class Next {
    kRead,    // the gateway's next message
    kDecide,  // call rule.Decide(request()) and OnDecided
    kEnd,     // end the stream with OK
  };

  explicit Processing(ProcessingArgs args) : args_(std::move(args)) {}

  // INVALID_ARGUMENT: the gateway does not keep to the protocol; end the stream with it.
  absl::StatusOr<Next> OnMessage(ext_proc::ProcessingRequest message);
  const HttpRequest& request() const { return request_; }
  Next OnDecided(const std::optional<HttpResponse>& refusal);
  // Refuses the request, in any state before the decision.
  Next Refuse(int status, const std::string& message);

  std::optional<ext_proc::ProcessingResponse> TakeAnswer();
  // True until the gateway has sent the whole request, or as much of it as decides.
  bool awaits_request() const { return state_ == State::kHead || state_ == State::kBody; }

 private:
  using Mode = ext_proc::ProtocolConfiguration;
  enum class State { kHead, kBody, kDecision, kDecided };

  absl::StatusOr<Next> OnRequestHead(const ext_proc::ProcessingRequest& message);
  absl::StatusOr<Next> OnRequestBody(ext_proc::HttpBody body);
  absl::StatusOr<Next> OnRequestTrailers();
  Next OnResponseBody(ext_proc::HttpBody body);
  Next Decide();
  Next End(const HttpResponse& refusal);
  void Name(NamedWith with);
  void QueuePieces(Part part, const std::string& bytes, bool last);

  const ProcessingArgs args_;
  State state_ = State::kHead;
  Mode::BodySendMode request_mode_ = Mode::FULL_DUPLEX_STREAMED;
  Mode::BodySendMode response_mode_ = Mode::FULL_DUPLEX_STREAMED;
  HttpRequest request_;
  bool trailers_ = false;  // they end the request's body
  std::optional<BodyReservation> reserved_;
  std::deque<ext_proc::ProcessingResponse> answers_;
  size_t returned_ = 0;     // bytes of the body that the gateway has got back
  bool returning_ = false;  // the rest of the body follows `answers_`
};

}  // namespace penstock
