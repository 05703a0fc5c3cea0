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

// When something leaves: at once, or with everything else that a decode step gives.
enum class Sending { kNow, kWithStep };

class SessionStream;

// What one session says to its router. Any thread; never waits. What is said after End is dropped.
class SessionWriter {
 public:
  SessionWriter(std::shared_ptr<SessionStream> stream, uint64_t number)
      : stream_(std::move(stream)), number_(number) {}

  void Say(v1::DecodeEvent event, Sending when) const;
  void SayToken(const v1::TokenOut& token) const;  // with the step
  // Only the first call counts; whether this was it.
  bool End(const absl::Status& status, Sending when) const;

 private:
  std::shared_ptr<SessionStream> stream_;  // shared with gRPC and with other sessions
  uint64_t number_;                        // of DecodeCommand
};

// What a router has opened. Shared by its stream, till it has ended, and by whoever works for it.
class StreamedSession {
 public:
  virtual ~StreamedSession() = default;
  // Once, and first of all. May End it.
  virtual void Begin(const v1::DecodeRequest& request) = 0;
  // The router wants no more of it, or is gone: to End it, where it has not ended meanwhile. After
  // Begin has returned; once at most.
  virtual void OnCalledOff(const absl::Status& why) = 0;
};

// Serves DecodeWorker.Sessions: a stream for each router, with all its sessions on it. A stream
// holds what its router has not read yet: at most what its sessions may answer. Any thread.
class SessionStreams {
 public:
  using Make = std::function<std::shared_ptr<StreamedSession>(SessionWriter outlet)>;

  explicit SessionStreams(Make make);
  ~SessionStreams();  // after every stream has ended, so after the server
  SessionStreams(const SessionStreams&) = delete;
  SessionStreams& operator=(const SessionStreams&) = delete;

  // A router has called. For gRPC, which lets go of it when the stream has ended.
  grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* Serve();
  // The step is over: what was said with it leaves now, as one message a stream.
  void FlushStep();
  // Calls off what is open, and ends the streams with UNAVAILABLE after what was said. New ones are
  // refused.
  void Stop();

 private:
  struct Shared;
  friend class SessionStream;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace penstock
