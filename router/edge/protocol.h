#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "router/edge/exchange.h"
#include "router/edge/http1_parser.h"

namespace penstock {

// Bytes of request bodies that all connections hold together. Any thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t most) : most_(most) {}
  bool Take(size_t bytes) {
    if (taken_.fetch_add(bytes) + bytes <= most_) return true;
    taken_.fetch_sub(bytes);
    return false;
  }
  void Give(size_t bytes) { taken_.fetch_sub(bytes); }
  size_t taken() const { return taken_.load(); }

 private:
  const size_t most_;
  std::atomic<size_t> taken_{0};
};

struct EdgeTimes {
  Duration handshake = std::chrono::seconds(10);  // of TLS
  Duration idle = std::chrono::seconds(75);       // between requests, and before the first
  Duration head = std::chrono::seconds(10);       // for a request's head
  Duration body = std::chrono::seconds(10);       // for its body, and a second for each
  size_t body_bytes_per_s = 16 << 10;             //   of these
  Duration stall = std::chrono::seconds(30);      // nothing that waits for a client could be sent
  Duration linger = std::chrono::seconds(2);      // for a refused client to read why
};

// What connections share. Outlives them.
struct EdgeContext {
  HttpHandler& handler;
  // Hands a request to a thread that may compute; false when too many wait.
  std::function<bool(std::function<void()> job)> run;
  BodyBudget& bodies;
  HttpLimits limits;
  EdgeTimes times;
  const Clock& clock;
  std::atomic<bool> closing{false};  // connections that have nothing to send are closed
};

// What is spoken on a connection: bytes in, bytes out. The connection's thread, except for the
// `wake` that it was made with.
class Protocol {
 public:
  virtual ~Protocol() = default;
  // Takes from the front of `bytes`; leaves some only when wants_input() has become false.
  virtual void TakeInput(std::string_view& bytes) = 0;
  virtual bool wants_input() const = 0;
  // Appends what there is to send, and stops soon after `most` bytes.
  virtual void Produce(std::string& out, size_t most) = 0;
  // Everything is produced, and the connection is to be closed once it is sent.
  virtual bool finished() const = 0;
  // When the client must have got on; OnDeadline is called after it.
  virtual TimePoint deadline() const = 0;
  virtual void OnDeadline() = 0;
  // The connection is gone.
  virtual void OnClosed() = 0;
};

}  // namespace penstock
