#include "http/protocol.h"

namespace penstock {

std::string AccountFor(EdgeContext& context, const HttpHead& head, const std::string& client) {
  std::string account = context.handler.AccountOf(head);
  return account.empty() ? client : account;
}

void QueueForHandler(EdgeContext& context, HttpRequest request,
                     std::shared_ptr<BodyReservation> held,
                     const std::shared_ptr<Exchange>& exchange) {
  const auto shared = std::make_shared<HttpRequest>(std::move(request));
  const bool taken =
      context.run([&handler = context.handler, shared, held = std::move(held), exchange] {
        // A client that resets requests as fast as it opens them must not delay others.
        if (exchange->client_left()) return;
        handler.Handle(std::move(*shared), exchange);
      });
  if (taken) return;
  context.metrics.OnLimit(EdgeLimit::kQueue);
  exchange->Respond(
      context.handler.Refuse(503, "too many requests wait to be read; try again in a second"));
}

}  // namespace penstock
