#include "tests/http/edge_handler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/support/wait_until.h"

namespace penstock {
namespace {

// Gives back what it takes.
class EchoSink final : public BodySink {
 public:
  EchoSink(std::shared_ptr<FedBody> body, std::atomic<int>& ended)
      : body_(std::move(body)), ended_(ended) {}
  bool Take(std::string_view bytes) override {
    size_ += bytes.size();
    body_->Add(std::string(bytes));
    return true;
  }
  void End() override {
    ++ended_;
    body_->End(BodySource::State::kEnd, {{"taken", std::to_string(size_)}, {"grpc-status", "0"}});
  }

 private:
  const std::shared_ptr<FedBody> body_;
  std::atomic<int>& ended_;
  size_t size_ = 0;
};

// Takes nothing, and says so.
class FullSink final : public BodySink {
 public:
  explicit FullSink(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  bool Take(std::string_view) override {
    exchange_->Respond({.status = 413, .body = "full"});
    return false;
  }
  void End() override { ADD_FAILURE() << "what was refused does not end"; }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

std::string Describe(const HttpRequest& request) {
  std::string text = request.head.method + " " + request.head.path + "?" + request.head.query;
  for (const HttpHeader& header : request.head.headers) {
    text += "\n" + header.name + ": " + header.value;
  }
  return text + "\n\n" + request.body;
}

}  // namespace

void FedBody::Add(const std::string& bytes) {
  {
    MutexLock lock(mutex_);
    bytes_ += bytes;
  }
  exchange_->Wake();
}

void FedBody::End(State state, std::vector<HttpHeader> trailers) {
  {
    MutexLock lock(mutex_);
    end_ = state;
    trailers_ = std::move(trailers);
  }
  exchange_->Wake();
}

BodySource::State FedBody::Pull(std::string& out, size_t max) {
  MutexLock lock(mutex_);
  const size_t size = std::min(max, bytes_.size());
  out.append(bytes_, 0, size);
  bytes_.erase(0, size);
  pulled_ += size;
  return bytes_.empty() ? end_ : State::kMore;
}

std::vector<HttpHeader> FedBody::Trailers() {
  MutexLock lock(mutex_);
  return trailers_;
}

std::optional<HttpResponse> EdgeHandler::Screen(const HttpHead& head) {
  if (head.path == "/forbidden") return Refuse(403, "not this one");
  return std::nullopt;
}

std::string EdgeHandler::AccountOf(const HttpHead& head) {
  const std::string* account = head.Find("x-account");
  return account == nullptr ? "" : *account;
}

std::shared_ptr<BodySink> EdgeHandler::Open(const HttpHead& head,
                                            const std::shared_ptr<Exchange>& exchange) {
  if (head.path == "/full") return std::make_shared<FullSink>(exchange);
  if (head.path != "/sink") return nullptr;
  exchange->OnClientLeft([this] { ++left; });
  auto body = std::make_shared<FedBody>(exchange);
  exchange->Stream({.status = 200, .headers = {{"content-type", "application/grpc"}}}, body);
  return std::make_shared<EchoSink>(body, sinks_ended);
}

void EdgeHandler::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  const std::string path = request.head.path;
  exchange->OnClientLeft([this] { ++left; });
  if (path == "/fed") {
    const auto body = std::make_shared<FedBody>(exchange);
    exchange->Stream({.status = 200}, body);
    MutexLock lock(mutex_);
    fed_.push_back(body);
  } else if (path == "/endless") {
    exchange->Stream({.status = 200}, endless);
  } else if (path == "/large") {
    exchange->Respond({.status = 200, .body = std::string(kLarge, 'x')});
  } else if (path == "/empty") {
    exchange->Respond({.status = 200, .headers = {{"grpc-status", "12"}}});
  } else if (path == "/never") {
    MutexLock lock(mutex_);
    kept_.push_back(std::move(exchange));
  } else {
    exchange->Respond({.status = 200, .body = Describe(request)});
  }
  ++handled;
}

std::shared_ptr<FedBody> EdgeHandler::Fed(size_t nth) {
  std::shared_ptr<FedBody> body;
  EXPECT_TRUE(WaitUntil([&] {
    MutexLock lock(mutex_);
    if (fed_.size() > nth) body = fed_[nth];
    return body != nullptr;
  }));
  return body;
}

void EdgeHandler::DropKept() {
  MutexLock lock(mutex_);
  kept_.clear();
}

}  // namespace penstock
