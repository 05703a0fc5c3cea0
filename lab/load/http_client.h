#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/event_loop.h"
#include "lab/load/http_response_parser.h"

namespace penstock {

// What becomes of one request. All calls come on the client's thread, in this order.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void OnStart(TimePoint now) = 0;  // the request begins to go out
  virtual void OnBody(const HttpResponseParser& response, std::string_view bytes,
                      TimePoint now) = 0;
  // OK: the response is complete. UNAVAILABLE: no connection, or it was lost. DATA_LOSS: what came
  // is no HTTP. DEADLINE_EXCEEDED, CANCELLED.
  virtual void OnEnd(const absl::Status& status, const HttpResponseParser& response,
                     TimePoint now) = 0;
};

// Requests to one HTTP/1.1 server, each on a connection that is not in use, else on a new one. One
// thread does all of it; the methods are for any.
class HttpLoadClient {
 public:
  // Tries the name's addresses; UNAVAILABLE when nobody listens on any.
  static absl::StatusOr<std::unique_ptr<HttpLoadClient>> Connect(const std::string& host,
                                                                 uint16_t port);
  ~HttpLoadClient();

  void Send(std::string request, Duration timeout, std::shared_ptr<HttpExchange> exchange);
  // Ends all requests with CANCELLED, also those to come.
  void CancelAll();

 private:
  class Pool;

  explicit HttpLoadClient(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  const std::shared_ptr<Pool> pool_;
};

}  // namespace penstock
