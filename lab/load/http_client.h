#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

struct HttpCall {
  std::string path;
  std::vector<std::string> headers;  // "Name: value"
  std::string body;                  // POST; empty: GET
  Duration timeout;                  // from now to the end of the response
};

// The head of a response.
struct HttpReply {
  int status = 0;  // 0: none came
  std::string content_type;
};

// The fate of one request. All calls come on the client's thread, in this order.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void OnStart(TimePoint now) = 0;  // the request begins to go out
  virtual void OnBody(const HttpReply& reply, std::string_view bytes, TimePoint now) = 0;
  // OK: the response is complete. UNAVAILABLE: no connection ("connect: ..."), or it was lost.
  // DATA_LOSS: the response is not HTTP. DEADLINE_EXCEEDED, CANCELLED.
  virtual void OnEnd(const absl::Status& status, const HttpReply& reply, TimePoint now) = 0;
};

// Requests to one HTTP/1.1 server by libcurl, each on an idle connection, else on a new one. One
// thread does all of it; the methods may be called from any thread.
class HttpLoadClient {
 public:
  // Connects once; UNAVAILABLE when no address of the host accepts.
  static absl::StatusOr<std::unique_ptr<HttpLoadClient>> Connect(const std::string& host,
                                                                 uint16_t port);
  ~HttpLoadClient();

  void Send(HttpCall call, std::shared_ptr<HttpExchange> exchange);
  // Ends all requests with CANCELLED, also those to come.
  void CancelAll();

 private:
  class Pool;

  explicit HttpLoadClient(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  const std::shared_ptr<Pool> pool_;
};

}  // namespace penstock
