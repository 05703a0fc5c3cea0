#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "proto/worker.pb.h"

namespace grpc {
template <class Request, class Response>
class ServerBidiReactor;
}

namespace penstock {

// When a message is sent: at once, or together with the other messages of a decode step.
enum class Sending { kNow, kWithStep };

class SessionStream;

// Writes one session's messages to its router. Any thread; never waits. Messages after End are
// dropped.
class SessionWriter {
 public:
  SessionWriter(std::shared_ptr<SessionStream> stream, uint64_t number)
      : stream_(std::move(stream)), number_(number) {}

  void Write(v1::DecodeEvent event, Sending when) const;
  void WriteToken(const v1::TokenOut& token) const;  // with the step
  // Only the first call counts. True if this was the first.
  bool End(const absl::Status& status, Sending when) const;

 private:
  std::shared_ptr<SessionStream> stream_;  // shared with gRPC and with other sessions
  uint64_t number_;                        // of DecodeCommand
};

// A session that a router has opened. Shared by its stream, until it has ended, and by its workers.
class StreamedSession {
 public:
  virtual ~StreamedSession() = default;
  // Called once, before everything else. May End the session.
  virtual void Begin(const v1::DecodeRequest& request) = 0;
  // The router has cancelled the session, or is gone: End it, unless it has ended already. Called
  // after Begin has returned, at most once.
  virtual void OnCancelled(const absl::Status& why) = 0;
};

// Serves DecodeWorker.Sessions: one stream for each router, with all its sessions. A stream buffers
// what its router has not read yet, at most the answers of its sessions. Any thread.
class SessionStreams {
 public:
  using Make = std::function<std::shared_ptr<StreamedSession>(SessionWriter writer)>;

  explicit SessionStreams(Make make);
  ~SessionStreams();  // after every stream has ended, so after the server
  SessionStreams(const SessionStreams&) = delete;
  SessionStreams& operator=(const SessionStreams&) = delete;

  // The reactor of a new stream. gRPC drops it when the stream has ended.
  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Serve();
  // The step has ended: sends its messages, as one message for each stream.
  void FlushStep();
  // Cancels open sessions, ends the streams with UNAVAILABLE after their buffered messages, and
  // refuses new streams.
  void Stop();

 private:
  struct Shared;
  friend class SessionStream;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace penstock
