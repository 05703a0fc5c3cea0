#pragma once

#include <algorithm>
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

// Time limits of a connection.
struct EdgeTimes {
  Duration handshake = std::chrono::seconds(10);   // limit of the TLS handshake
  Duration first_byte = std::chrono::seconds(10);  // limit from the connection to its first byte
  Duration idle = std::chrono::seconds(75);        // limit between requests
  Duration head = std::chrono::seconds(10);        // limit for a request's head
  // Limit for the first bytes of a request's body, and for a client that is slower than
  // body_bytes_per_s.
  Duration body = std::chrono::seconds(10);
  size_t body_bytes_per_s = 16 << 10;
  // Limit without progress of output that waits for the client.
  Duration stall = std::chrono::seconds(30);
  Duration linger = std::chrono::seconds(2);  // for a refused client to read the answer
  // HTTP/2 pings a client that has open requests and has been silent for this long; the client must
  // answer within `stall`.
  Duration ping = std::chrono::seconds(10);

  // Moves the deadline of a body on by the time that `bytes` more may take, but not further than
  // `body` from now. So a body may last as long as its client keeps the minimum rate, and a client
  // that stops is cut off soon, whatever it has sent before.
  TimePoint NextBodyDeadline(TimePoint deadline, size_t bytes, TimePoint now) const {
    const Duration earned = Duration(std::chrono::seconds(bytes)) / body_bytes_per_s;
    return std::min(deadline + earned, now + body);
  }
};

// Limits of one HTTP/2 connection.
struct Http2Limits {
  // Concurrent requests of one connection. Their memory is limited by BodyBudget, so this limit is
  // as high as one gateway's connection with many long answers needs: client libraries queue
  // requests above it silently.
  uint32_t streams = 1000;
  // Flow-control windows: received bytes that are not consumed yet, of one request's body and of
  // all bodies of a connection.
  uint32_t stream_window_bytes = 64 << 10;
  uint32_t connection_window_bytes = 1 << 20;
};

// The state that all connections of a port share. Outlives them.
struct EdgeContext {
  HttpHandler& handler;
  // Runs a job on a handler thread. Returns false if too many jobs are queued.
  std::function<bool(std::function<void()> job)> run;
  BodyBudget& bodies;
  HttpLimits limits;
  Http2Limits http2;
  EdgeTimes times;
  const Clock& clock;
  EdgeMetrics& metrics;
  std::atomic<bool> closing{false};  // connections end when they are idle
};

// Error texts that all protocols use.
inline constexpr char kTooManyLarge[] =
    "too many large requests are being received; try again in a second";
inline constexpr char kTooSlow[] = "the request did not arrive in time";

// The account in BodyBudget of a request's body: that of the handler, else the client's.
std::string AccountFor(EdgeContext& context, const HttpHead& head, const std::string& client);

// Queues the request for a handler thread, or answers with an error if the queue is full. `held` is
// kept as long as the request.
void QueueForHandler(EdgeContext& context, HttpRequest request,
                     std::shared_ptr<BodyReservation> held,
                     const std::shared_ptr<Exchange>& exchange);

// Interface: a protocol on a connection, from input bytes to output bytes. Called on the
// connection's thread only; only the `wake` function that it was created with may be called from
// any thread.
class Protocol {
 public:
  virtual ~Protocol() = default;
  // Takes bytes from the front of `bytes`. It leaves some only if wants_input() has become false.
  virtual void TakeInput(std::string_view& bytes) = 0;
  virtual bool wants_input() const = 0;
  // True if no complete request is in work: the connection could be closed without losing an
  // answer.
  virtual bool idle() const = 0;
  // Appends output that is ready and stops soon after `max` bytes.
  virtual void Produce(std::string& out, size_t max) = 0;
  // True if all output is produced and the connection must be closed once it is sent.
  virtual bool finished() const = 0;
  // The time by which the client must make progress; OnDeadline is called after it.
  virtual TimePoint deadline() const = 0;
  virtual void OnDeadline() = 0;
  // Called repeatedly while the server shuts down: new requests are refused, and finished() becomes
  // true when the open requests are answered. Returns true if no request is open and the connection
  // may be closed at once.
  virtual bool OnClosing() = 0;
  // Called when the connection is closed.
  virtual void OnClosed() = 0;
};

}  // namespace penstock
