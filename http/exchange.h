#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "http/http_message.h"

namespace penstock {

// The body of an answer that is produced over time. The connection pulls it when the client can
// take more, so that data for a slow client stays here, in its most compact form. Called on the
// connection's thread; must not block.
//
// This room, http/, moves requests and answers between sockets and handlers: connections, TLS,
// budgets, and the interfaces that the protocols (http/http1, http/http2) implement and the API
// (HttpHandler) is called by. It may use base/, base/log, base/metrics and base/tls only. It does
// not know routes, JSON or the API.
class BodySource {
 public:
  enum class State {
    kMore,    // no more for now; call Exchange::Wake when there is more
    kEnd,     // the body is complete
    kBroken,  // the body ends incomplete; the stream, or HTTP/1.1's connection, is aborted
  };
  virtual ~BodySource() = default;
  // Appends available bytes to `out` and stops soon after `max` bytes.
  virtual State Pull(std::string& out, size_t max) = 0;
  // The trailers after the body, requested once after kEnd. HTTP/1.1 drops them.
  virtual std::vector<HttpHeader> Trailers() { return {}; }
};

// The receiver of a request body that is processed before it is complete. Called on the
// connection's thread; must not block.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // Takes the next bytes of the body, in order, in pieces of any size. Returning false refuses the
  // rest; the answer then gives the reason.
  virtual bool Take(std::string_view bytes) = 0;
  virtual void End() = 0;  // the body is complete
};

// The answer to one request: exactly one call of Respond or Stream. Shared by the handler and the
// connection; each may release it first. Any thread.
class Exchange {
 public:
  // `wake` makes the connection call TakeAnswer; it must be callable on any thread.
  explicit Exchange(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Respond(HttpResponse response) EXCLUDES(mutex_);
  // Sends the head now, and then the bytes of `source`. `head.body` must be empty.
  void Stream(HttpResponse head, std::shared_ptr<BodySource> source) EXCLUDES(mutex_);
  // Reports that the source has more bytes.
  void Wake() { wake_(); }
  // Calls `left` if the client disconnects before it has its answer; at once if it has already.
  void OnClientLeft(std::function<void()> left) EXCLUDES(mutex_);
  bool client_left() const EXCLUDES(mutex_);

  // For the connection: returns the answer once there is one.
  struct Answer {
    HttpResponse head;
    std::shared_ptr<BodySource> source;  // null: head.body is the whole body
  };
  std::optional<Answer> TakeAnswer() EXCLUDES(mutex_);
  // For the connection: the client has disconnected, or has its complete answer.
  void Close(bool client_left) EXCLUDES(mutex_);

 private:
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::optional<Answer> answer_ GUARDED_BY(mutex_);
  std::function<void()> left_ GUARDED_BY(mutex_);
  bool client_left_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Interface: handles the requests of any number of connections. Outlives them.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called after the head and before Screen, on a connection's thread; must be fast. Returns
  // headers that are added to every answer to the request, also to one that refuses it. A head that
  // is malformed or too large has the fields that could be read.
  virtual std::vector<HttpHeader> AnswerHeaders(const HttpHead& /*head*/) { return {}; }
  // Called after the head and before the body, on a connection's thread; must be fast. Returning a
  // response refuses the request.
  virtual std::optional<HttpResponse> Screen(const HttpHead& head) = 0;
  // Called after Screen, on a connection's thread; must be fast. Names the account that the memory
  // of the request's body is charged to, e.g. a tenant; empty: the client's address.
  virtual std::string AccountOf(const HttpHead& /*head*/) { return ""; }
  // Called after Screen, on a connection's thread. Returns a sink for a body that is processed as
  // it arrives, or null to collect the body for Handle.
  virtual std::shared_ptr<BodySink> Open(const HttpHead& /*head*/,
                                         const std::shared_ptr<Exchange>& /*exchange*/) {
    return nullptr;
  }
  // Handles a complete request, on a thread that may compute for a while.
  virtual void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // Formats an error that occurred below the handler: a malformed request or a limit.
  virtual HttpResponse Refuse(int status, const std::string& message) = 0;
};

}  // namespace penstock
