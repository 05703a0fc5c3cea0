#pragma once

#include <list>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// An answer that stays open as long as its client likes: it ends when End says so. Any thread.
class StandingStream : public BodySource {
 public:
  explicit StandingStream(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  // The first counts. What Append has is sent before it.
  void End(const absl::Status& status) EXCLUDES(mutex_);
  void Wake() { exchange_->Wake(); }

  State Pull(std::string& out, size_t max) final EXCLUDES(mutex_);
  std::vector<HttpHeader> Trailers() final EXCLUDES(mutex_);

 private:
  // Appends messages, and stops soon after `most` bytes; false once there are no more for now.
  virtual bool Append(std::string& out, size_t max) = 0;

  const std::shared_ptr<Exchange> exchange_;
  Mutex mutex_;
  std::optional<absl::Status> ending_ GUARDED_BY(mutex_);
};

// Those of a server, up to a bound. Any thread.
class StandingStreams {
 public:
  explicit StandingStreams(size_t max) : max_(max) {}

  // RESOURCE_EXHAUSTED at the bound, UNAVAILABLE once they were ended. Forgotten when their clients
  // leave, as the connections have them then no more.
  absl::Status Add(const std::shared_ptr<StandingStream>& stream) EXCLUDES(mutex_);
  void WakeAll() EXCLUDES(mutex_);
  // All of them, and those that are added later are refused.
  void EndAll() EXCLUDES(mutex_);

 private:
  std::vector<std::shared_ptr<StandingStream>> Alive() REQUIRES(mutex_);

  const size_t max_;
  Mutex mutex_;
  std::list<std::weak_ptr<StandingStream>> streams_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
