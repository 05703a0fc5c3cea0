#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "http/exchange.h"

namespace penstock {

// A body that a test feeds. Any thread.
class FedBody final : public BodySource {
 public:
  explicit FedBody(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

  void Add(const std::string& bytes) EXCLUDES(mutex_);
  void End(State state, std::vector<HttpHeader> trailers = {}) EXCLUDES(mutex_);

  State Pull(std::string& out, size_t max) override EXCLUDES(mutex_);
  std::vector<HttpHeader> Trailers() override EXCLUDES(mutex_);
  size_t pulled() const { return pulled_.load(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
  std::atomic<size_t> pulled_{0};
  Mutex mutex_;
  std::string bytes_ GUARDED_BY(mutex_);
  State end_ GUARDED_BY(mutex_) = State::kMore;
  std::vector<HttpHeader> trailers_ GUARDED_BY(mutex_);
};

// A body without end.
class Endless final : public BodySource {
 public:
  State Pull(std::string& out, size_t max) override {
    out.append(max, 'x');
    pulled += max;
    return State::kMore;
  }
  std::atomic<size_t> pulled{0};
};

// Requests as the edge has made them, by path: /echo says all of the request, /never is not
// answered, /fed streams what the test gives, /endless does not end, /large is `kLarge` bytes,
// /sink takes its body as it comes and echoes it as it comes, with trailers, /full takes none of
// it, /forbidden is screened.
class EdgeHandler final : public HttpHandler {
 public:
  static constexpr size_t kLarge = 16 << 20;  // more than sockets take at once

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  // The header x-account.
  std::string AccountOf(const HttpHead& head) override;
  std::shared_ptr<BodySink> Open(const HttpHead& head,
                                 const std::shared_ptr<Exchange>& exchange) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }
  // The `nth` request of /fed; waits for it.
  std::shared_ptr<FedBody> Fed(size_t nth = 0) EXCLUDES(mutex_);
  void DropKept() EXCLUDES(mutex_);

  std::atomic<int> handled{0};
  std::atomic<int> left{0};
  std::atomic<int> sinks_ended{0};
  const std::shared_ptr<Endless> endless = std::make_shared<Endless>();

 private:
  Mutex mutex_;
  std::deque<std::shared_ptr<FedBody>> fed_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Exchange>> kept_ GUARDED_BY(mutex_);
};

}  // namespace penstock
