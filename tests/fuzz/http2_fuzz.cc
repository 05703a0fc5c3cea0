// Frames of an HTTP/2 connection: whatever they are, in whatever pieces and however late they come,
// every request that is opened is closed, what is held stays within its bounds, and all of it is
// given back.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "http/http2/http2.h"

namespace {

using penstock::BodySource;
using penstock::Exchange;

constexpr size_t kBudget = 64 << 10;
constexpr size_t kProduce = 16 << 10;
constexpr size_t kFrame = 16 << 10;

class Source final : public BodySource {
 public:
  explicit Source(size_t left) : left_(left) {}
  State Pull(std::string& out, size_t max) override {
    if (waits_) {
      waits_ = false;
      return State::kMore;
    }
    const size_t size = std::min({max, left_, size_t{1000}});
    out.append(size, 'x');
    left_ -= size;
    waits_ = left_ % 2 == 1;
    if (left_ > 0) return State::kMore;
    return size % 3 == 0 ? State::kBroken : State::kEnd;
  }
  std::vector<penstock::HttpHeader> Trailers() override { return {{"grpc-status", "0"}}; }

 private:
  size_t left_;
  bool waits_ = false;
};

class Sink final : public penstock::BodySink {
 public:
  explicit Sink(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  bool Take(std::string_view bytes) override {
    PENSTOCK_CHECK(!ended_ && !refused_);
    size_ += bytes.size();
    refused_ = size_ > 2000;
    if (refused_) exchange_->Respond({.status = 413, .body = "full"});
    return !refused_;
  }
  void End() override {
    PENSTOCK_CHECK(!ended_ && !refused_);
    ended_ = true;
    exchange_->Stream({}, std::make_shared<Source>(size_));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  size_t size_ = 0;
  bool ended_ = false;
  bool refused_ = false;
};

// Acts as the path's first letter says.
class Handler final : public penstock::HttpHandler {
 public:
  std::optional<penstock::HttpResponse> Screen(const penstock::HttpHead& head) override {
    PENSTOCK_CHECK(head.path.starts_with('/'));
    PENSTOCK_CHECK(head.Find("host") != nullptr);
    for (const auto& header : head.headers) {
      PENSTOCK_CHECK(!header.name.empty() && header.name[0] != ':');
      PENSTOCK_CHECK(header.value.find('\n') == std::string::npos);
    }
    if (head.path.starts_with("/f")) return Refuse(403, "no");
    return std::nullopt;
  }
  std::shared_ptr<penstock::BodySink> Open(const penstock::HttpHead& head,
                                           const std::shared_ptr<Exchange>& exchange) override {
    exchanges.push_back(exchange);
    return head.path.starts_with("/s") ? std::make_shared<Sink>(exchange) : nullptr;
  }
  void Handle(penstock::HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    if (request.head.path.starts_with("/n")) return;
    if (request.head.path.starts_with("/b")) {
      return exchange->Stream({}, std::make_shared<Source>(5000 + request.body.size()));
    }
    exchange->Respond({.status = 200, .body = std::move(request.body)});
  }
  penstock::HttpResponse Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }

  std::vector<std::weak_ptr<Exchange>> exchanges;
};

// One connection and everything around it.
class World {
 public:
  ~World() {
    http2_->OnClosed();
    http2_.reset();
    jobs_.clear();
    PENSTOCK_CHECK_EQ(bodies_.reserved(), 0u);
    for (const auto& exchange : handler_.exchanges) PENSTOCK_CHECK(exchange.expired());
  }

  void Feed(std::string_view bytes) {
    if (!http2_->wants_input() || http2_->finished()) return;
    http2_->TakeInput(bytes);
    PENSTOCK_CHECK(bytes.empty() || !http2_->wants_input());
    PENSTOCK_CHECK_LE(bodies_.reserved(), kBudget);
  }
  void Send() {
    std::string out;
    http2_->Produce(out, kProduce);
    PENSTOCK_CHECK_LE(out.size(), kProduce + kFrame + 4096);
  }
  void Work() {
    if (jobs_.empty()) return;
    jobs_.front()();
    jobs_.pop_front();
  }
  void Wait(penstock::Duration time) {
    clock_.Advance(time);
    if (clock_.Now() >= http2_->deadline()) http2_->OnDeadline();
  }
  void Close() { http2_->OnClosing(); }

 private:
  penstock::ManualClock clock_;
  Handler handler_;
  penstock::MetricsRegistry registry_;
  penstock::EdgeMetrics metrics_{registry_, "http"};
  penstock::BodyBudget bodies_{kBudget};
  std::deque<std::function<void()>> jobs_;
  penstock::EdgeContext context_{
      .handler = handler_,
      .run =
          [this](std::function<void()> job) {
            if (jobs_.size() == 8) return false;
            jobs_.push_back(std::move(job));
            return true;
          },
      .bodies = bodies_,
      .limits = {.head_bytes = 2048, .target_bytes = 64, .headers = 8, .body_bytes = 8192},
      .http2 = {.streams = 8},
      .times = {},
      .clock = clock_,
      .metrics = metrics_};
  std::unique_ptr<penstock::Http2> http2_ = std::make_unique<penstock::Http2>(context_, [] {});
};

}  // namespace

// Pieces, each behind a byte that says what happens before it and how long it is.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  World world;
  while (!bytes.empty()) {
    const auto how = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    const std::string_view piece = bytes.substr(0, how % 32 < 31 ? how % 32 * 8 : bytes.size());
    bytes.remove_prefix(piece.size());
    if ((how & 0x20) != 0) world.Send();
    if ((how & 0x40) != 0) world.Work();
    if ((how & 0xe0) == 0x80) world.Wait(std::chrono::seconds(6));
    if ((how & 0xe0) == 0xe0) world.Close();
    world.Feed(piece);
  }
  for (int i = 0; i < 4; ++i) {
    world.Work();
    world.Send();
  }
  return 0;
}
