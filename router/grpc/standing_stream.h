#pragma once

#include <list>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// A streamed answer that stays open until End or until its client leaves. Any thread.
class StandingStream : public BodySource {
 public:
  explicit StandingStream(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  // Ends the stream with this status, after the messages that Append has. Only the first call
  // counts.
  void End(const absl::Status& status) EXCLUDES(mutex_);
  void Wake() { exchange_->Wake(); }

  State Pull(std::string& out, size_t max) final EXCLUDES(mutex_);
  std::vector<HttpHeader> Trailers() final EXCLUDES(mutex_);

 private:
  // Appends messages until `max` bytes are exceeded; false when there are no more for now.
  virtual bool Append(std::string& out, size_t max) = 0;

  const std::shared_ptr<Exchange> exchange_;
  Mutex mutex_;
  std::optional<absl::Status> ending_ GUARDED_BY(mutex_);
};

// All standing streams of a server, up to a bound. Any thread.
class StandingStreams {
 public:
  explicit StandingStreams(size_t max) : max_(max) {}

  // Adds a stream. RESOURCE_EXHAUSTED at the bound, UNAVAILABLE after EndAll. The reference is
  // weak: a stream whose connection has ended is no longer counted.
  absl::Status Add(const std::shared_ptr<StandingStream>& stream) EXCLUDES(mutex_);
  void WakeAll() EXCLUDES(mutex_);
  // Ends all streams with UNAVAILABLE; later Adds are refused.
  void EndAll() EXCLUDES(mutex_);

 private:
  std::vector<std::shared_ptr<StandingStream>> Alive() REQUIRES(mutex_);

  const size_t max_;
  Mutex mutex_;
  std::list<std::weak_ptr<StandingStream>> streams_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
