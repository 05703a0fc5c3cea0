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

// The body of an answer that comes bit by bit. It is pulled when the client can take more, so what
// waits for a slow client waits here, in whatever form is smallest. On the connection's thread;
// must not wait.
class BodySource {
 public:
  enum class State {
    kMore,    // that is all for now; Exchange::Wake when there is more
    kEnd,     // complete
    kBroken,  // complete as far as it goes; the stream, or HTTP/1.1's connection, breaks off
  };
  virtual ~BodySource() = default;
  // Appends what is there, and stops soon after `most` bytes.
  virtual State Pull(std::string& out, size_t max) = 0;
  // What follows the body, asked once after kEnd. HTTP/1.1 leaves it out.
  virtual std::vector<HttpHeader> Trailers() { return {}; }
};

// The body of a request, for whoever answers before it is complete. On the connection's thread;
// must not wait.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // In order, in any pieces. False refuses what is still to come: the answer says why.
  virtual bool Take(std::string_view bytes) = 0;
  virtual void End() = 0;  // complete
};

// One request's way back to its client: either Respond or Stream, once. Shared by whoever answers
// and the connection; outlives neither's need of it. Any thread.
class Exchange {
 public:
  // `wake` has the connection look here; it may be called on any thread.
  explicit Exchange(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Respond(HttpResponse response) EXCLUDES(mutex_);
  // The head now, and then what `source` gives. `head.body` is empty.
  void Stream(HttpResponse head, std::shared_ptr<BodySource> source) EXCLUDES(mutex_);
  // The source has more to give.
  void Wake() { wake_(); }
  // Calls `left` when the client leaves before it has its answer; at once when it has left already.
  void OnClientLeft(std::function<void()> left) EXCLUDES(mutex_);
  bool client_left() const EXCLUDES(mutex_);

  // For the connection: the answer, once there is one.
  struct Answer {
    HttpResponse head;
    std::shared_ptr<BodySource> source;  // null: head.body is all
  };
  std::optional<Answer> TakeAnswer() EXCLUDES(mutex_);
  // The client is gone, or has everything.
  void Close(bool client_left) EXCLUDES(mutex_);

 private:
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::optional<Answer> answer_ GUARDED_BY(mutex_);
  std::function<void()> left_ GUARDED_BY(mutex_);
  bool client_left_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Takes requests from any number of connections.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // After the head and before the body, on a connection's thread: quick. A response refuses.
  virtual std::optional<HttpResponse> Screen(const HttpHead& head) = 0;
  // Likewise, for a request whose body is taken as it comes; null has it collected for Handle.
  virtual std::shared_ptr<BodySink> Open(const HttpHead& /*head*/,
                                         const std::shared_ptr<Exchange>& /*exchange*/) {
    return nullptr;
  }
  // A whole request, on a thread that may compute for a while.
  virtual void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // How what is wrong below the handler is said: a broken request, a limit.
  virtual HttpResponse Refuse(int status, const std::string& message) = 0;
};

}  // namespace penstock
