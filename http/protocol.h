#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "http/body_budget.h"
#include "http/edge_metrics.h"
#include "http/exchange.h"

namespace penstock {

struct EdgeTimes {
  Duration handshake = std::chrono::seconds(10);  // of TLS
  Duration idle = std::chrono::seconds(75);       // between requests, and before the first
  Duration head = std::chrono::seconds(10);       // for a request's head
  Duration body = std::chrono::seconds(10);       // for its body, and a second for each
  size_t body_bytes_per_s = 16 << 10;             //   of these
  Duration stall = std::chrono::seconds(30);      // nothing that waits for a client could be sent
  Duration linger = std::chrono::seconds(2);      // for a refused client to read why
  // HTTP/2 asks a client that has requests and is silent for this long whether it is there; it
  // has `stall` to say so.
  Duration ping = std::chrono::seconds(10);

  // As long as its bytes come at a pace, a body may go on.
  TimePoint BodyDeadline(TimePoint begin, size_t bytes) const {
    return begin + body + std::chrono::seconds(bytes / body_bytes_per_s);
  }
};

struct Http2Limits {
  // Requests of one connection at once. What they hold has its bound in the budget of bodies, so
  // this is as high as one gateway's connection needs it for its long answers: a client library
  // keeps what is above it waiting without a word.
  uint32_t streams = 1000;
  // What may be on its way and not taken yet, of one request's body and of all.
  uint32_t stream_window_bytes = 64 << 10;
  uint32_t connection_window_bytes = 1 << 20;
};

// What connections share. Outlives them.
struct EdgeContext {
  HttpHandler& handler;
  // Hands a request to a thread that may compute; false when too many wait.
  std::function<bool(std::function<void()> job)> run;
  BodyBudget& bodies;
  HttpLimits limits;
  Http2Limits http2;
  EdgeTimes times;
  const Clock& clock;
  EdgeMetrics& metrics;
  std::atomic<bool> closing{false};  // connections end once they are idle
};

// What every protocol says of its limits.
inline constexpr char kTooManyLarge[] =
    "too many large requests are being received; try again in a second";
inline constexpr char kTooSlow[] = "the request did not arrive in time";

// Has a thread that may compute handle the request, or answers that none has time. `held` is kept
// as long as the request is.
void HandOver(EdgeContext& context, HttpRequest request, std::shared_ptr<HeldBody> held,
              const std::shared_ptr<Exchange>& exchange);

// What is spoken on a connection: bytes in, bytes out. The connection's thread, except for the
// `wake` that it was made with.
class Protocol {
 public:
  virtual ~Protocol() = default;
  // Takes from the front of `bytes`; leaves some only when wants_input() has become false.
  virtual void TakeInput(std::string_view& bytes) = 0;
  virtual bool wants_input() const = 0;
  // Appends what there is to send, and stops soon after `most` bytes.
  virtual void Produce(std::string& out, size_t max) = 0;
  // Everything is produced, and the connection is to be closed once it is sent.
  virtual bool finished() const = 0;
  // When the client must have got on; OnDeadline is called after it.
  virtual TimePoint deadline() const = 0;
  virtual void OnDeadline() = 0;
  // The server ends: nothing new is taken, and finished() comes when what is under way is answered.
  // Called again and again. True when nothing is under way and the connection may just be closed.
  virtual bool OnClosing() = 0;
  // The connection is gone.
  virtual void OnClosed() = 0;
};

}  // namespace penstock
