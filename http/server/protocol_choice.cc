#include "http/server/protocol_choice.h"

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "http/http1/http1.h"
#include "http/http2/http2.h"

namespace penstock {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";  // RFC 9113, section 3.4

// Answers that the protocol is not accepted on this port, and ends.
class Refusing final : public Protocol {
 public:
  explicit Refusing(std::string message) : message_(std::move(message)) {}

  void TakeInput(std::string_view&) override {}
  bool wants_input() const override { return false; }
  bool idle() const override { return message_.empty(); }
  void Produce(std::string& out, size_t) override { out += std::exchange(message_, ""); }
  bool finished() const override { return message_.empty(); }
  TimePoint deadline() const override { return TimePoint::max(); }
  void OnDeadline() override {}
  bool OnClosing() override { return false; }
  void OnClosed() override {}

 private:
  std::string message_;
};

// Becomes HTTP/2 if the client's first bytes are HTTP/2's preface, else the protocol `otherwise`.
class Sniffed final : public Protocol {
 public:
  using Make = std::function<std::unique_ptr<Protocol>()>;
  Sniffed(EdgeContext& context, Make http2, Make otherwise)
      : context_(context),
        http2_(std::move(http2)),
        otherwise_(std::move(otherwise)),
        deadline_(context.clock.Now() + context.times.first_byte) {}

  void TakeInput(std::string_view& bytes) override {
    if (chosen_ == nullptr) Sniff(bytes);
    if (chosen_ != nullptr && chosen_->wants_input()) chosen_->TakeInput(bytes);
  }
  bool wants_input() const override {
    return chosen_ != nullptr ? chosen_->wants_input() : !finished_;
  }
  bool idle() const override { return chosen_ == nullptr || chosen_->idle(); }
  void Produce(std::string& out, size_t max) override {
    if (chosen_ != nullptr) chosen_->Produce(out, max);
  }
  bool finished() const override { return chosen_ != nullptr ? chosen_->finished() : finished_; }
  TimePoint deadline() const override {
    return chosen_ != nullptr ? chosen_->deadline() : deadline_;
  }
  void OnDeadline() override {
    if (chosen_ != nullptr) return chosen_->OnDeadline();
    finished_ = true;
  }
  bool OnClosing() override { return chosen_ == nullptr || chosen_->OnClosing(); }
  void OnClosed() override {
    if (chosen_ != nullptr) chosen_->OnClosed();
  }

 private:
  void Sniff(std::string_view& bytes) {
    const std::string_view rest = kPreface.substr(matched_);
    const std::string_view part = bytes.substr(0, rest.size());
    const bool is_preface = rest.starts_with(part);
    if (is_preface && part.size() < rest.size()) {
      if (matched_ == 0) deadline_ = context_.clock.Now() + context_.times.head;
      matched_ += part.size();
      bytes = {};
      return;
    }
    counted_.reset();
    chosen_ = is_preface ? http2_() : otherwise_();
    std::string_view before = kPreface.substr(0, matched_);
    if (chosen_->wants_input()) chosen_->TakeInput(before);
  }

  EdgeContext& context_;
  std::optional<CountedConnection> counted_{std::in_place, context_.metrics,
                                            EdgeProtocol::kUnknown};
  const Make http2_;
  const Make otherwise_;
  TimePoint deadline_;
  size_t matched_ = 0;  // bytes of the preface received
  std::unique_ptr<Protocol> chosen_;
  bool finished_ = false;
};

}  // namespace

std::vector<std::string> AlpnNames(Protocols allowed) {
  switch (allowed) {
    case Protocols::kHttp1:
      return {"http/1.1"};
    case Protocols::kHttp1And2:
      return {"h2", "http/1.1"};
    case Protocols::kHttp2:
      return {"h2"};
  }
  return {};
}

std::string RefusalBytes(Protocols allowed, HttpHandler& handler, const std::string& why) {
  if (allowed != Protocols::kHttp2) return LastResponseText(handler.Refuse(503, why));
  // An empty SETTINGS, a server's first frame, and GOAWAY without accepted streams (RFC 9113,
  // sections 6.5 and 6.8).
  std::string bytes("\0\0\0\4\0\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0\0\0\0\0\0", 25);
  PENSTOCK_CHECK_LT(why.size(), 128u);
  bytes[11] = static_cast<char>(8 + why.size());
  bytes.push_back(NGHTTP2_ENHANCE_YOUR_CALM);
  return bytes + why;
}

std::unique_ptr<Protocol> ChooseProtocol(Protocols allowed, EdgeContext& context,
                                         std::function<void()> wake, const std::string& client) {
  const Sniffed::Make http1 = [&context, wake, client] {
    return std::make_unique<Http1>(context, wake, client);
  };
  if (allowed == Protocols::kHttp1) return http1();
  const Sniffed::Make http2 = [&context, wake, client] {
    return std::make_unique<Http2>(context, wake, client);
  };
  Sniffed::Make otherwise = [&context] {
    context.metrics.OnLimit(EdgeLimit::kMalformed);
    return std::make_unique<Refusing>(LastResponseText(
        {.status = 400,
         .headers = {{"content-type", "text/plain"}},
         .body = "this port speaks HTTP/2 only, as gRPC does: use a gRPC client, or the port for "
                 "HTTP\n"}));
  };
  if (allowed == Protocols::kHttp1And2) {
    otherwise = http1;
  }
  return std::make_unique<Sniffed>(context, http2, std::move(otherwise));
}

}  // namespace penstock
