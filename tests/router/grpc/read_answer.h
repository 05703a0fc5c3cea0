#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// A message as a request carries it.
std::string Framed(const std::string& message, char flags = 0);

// An exchange without a connection: what a handler answers is read from here.
class TestExchange {
 public:
  TestExchange();

  const std::shared_ptr<Exchange>& get() const { return exchange_; }
  int wakes() const { return *wakes_; }

  // The messages that were answered and not read yet, pulled in pieces of `max` bytes.
  std::vector<std::string> ReadMessages(size_t max = 1 << 16);
  bool answered();
  bool ended() const { return ended_; }
  // Valid once the answer has ended.
  int http_status() const { return head_.status; }
  bool trailers_only() const { return source_ == nullptr; }
  absl::Status status() const;
  // A trailer, from the head when there are no trailers; base64 is decoded.
  std::string Trailer(const std::string& name) const;
  const HttpResponse& head() const { return head_; }

 private:
  const std::shared_ptr<std::atomic<int>> wakes_;
  const std::shared_ptr<Exchange> exchange_;
  bool answered_ = false;
  bool ended_ = false;
  HttpResponse head_;
  std::shared_ptr<BodySource> source_;
  std::vector<HttpHeader> trailers_;
};

}  // namespace penstock
