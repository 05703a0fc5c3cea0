#include "router/edge/http1.h"

#include <fmt/format.h>

#include <utility>

namespace penstock {
namespace {

// Gives a request's share of the budget back when the last holder goes.
class HeldBody {
 public:
  HeldBody(BodyBudget& budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
  ~HeldBody() { budget_.Give(bytes_); }
  HeldBody(const HeldBody&) = delete;
  HeldBody& operator=(const HeldBody&) = delete;

 private:
  BodyBudget& budget_;
  const size_t bytes_;
};

}  // namespace

Http1::Http1(EdgeContext& context, std::function<void()> wake)
    : context_(context), wake_(std::move(wake)), parser_(context.limits) {
  deadline_ = context_.clock.Now() + context_.times.idle;
}

Http1::~Http1() { LetBodyGo(); }

// ---------------------------------------------------------------- in

void Http1::TakeInput(std::string_view& bytes) {
  while (wants_input()) {
    const bool idle = !parser_.started();
    const Http1Parser::Event event = parser_.Take(bytes);
    if (idle && parser_.started()) deadline_ = context_.clock.Now() + context_.times.head;
    switch (event) {
      case Http1Parser::Event::kMore:
        if (!HoldBody(parser_.body_bytes_so_far())) {
          return Refuse(503, "too many large requests are being received; try again in a second");
        }
        if (head_seen_) {  // As long as its bytes come at a pace, a body may go on.
          deadline_ =
              body_begin_ + context_.times.body +
              std::chrono::seconds(parser_.body_bytes_so_far() / context_.times.body_bytes_per_s);
        }
        return;
      case Http1Parser::Event::kHead:
        OnHead();
        break;
      case Http1Parser::Event::kRequest:
        OnRequest();
        break;
      case Http1Parser::Event::kError:
        return Refuse(parser_.error().status, parser_.error().message);
    }
  }
}

void Http1::OnHead() {
  head_seen_ = true;
  body_begin_ = context_.clock.Now();
  deadline_ = body_begin_ + context_.times.body;
  head_only_ = parser_.head().method == "HEAD";
  std::optional<HttpResponse> refusal = context_.handler.Screen(parser_.head());
  if (refusal) {
    close_after_ = true;  // The body that follows is not read.
    return Answer(*std::move(refusal));
  }
  if (parser_.expects_continue() && !parser_.http_1_0()) ready_ += "HTTP/1.1 100 Continue\r\n\r\n";
}

void Http1::OnRequest() {
  if (!HoldBody(parser_.body_bytes_so_far())) {
    return Refuse(503, "too many large requests are being received; try again in a second");
  }
  close_after_ = !parser_.keep_alive();
  deadline_ = TimePoint::max();
  exchange_ = std::make_shared<Exchange>(wake_);
  const auto held = std::make_shared<HeldBody>(context_.bodies, std::exchange(body_held_, 0));
  const auto request = std::make_shared<HttpRequest>(parser_.TakeRequest());
  const bool taken =
      context_.run([&handler = context_.handler, request, held, exchange = exchange_]() mutable {
        handler.Handle(std::move(*request), std::move(exchange));
      });
  if (taken) return;
  exchange_->Respond(
      context_.handler.Refuse(503, "too many requests wait to be read; try again in a second"));
}

bool Http1::HoldBody(size_t bytes) {
  if (bytes <= body_held_) return true;
  if (!context_.bodies.Take(bytes - body_held_)) return false;
  body_held_ = bytes;
  return true;
}

void Http1::LetBodyGo() { context_.bodies.Give(std::exchange(body_held_, 0)); }

void Http1::OnDeadline() {
  if (!parser_.started() && !head_seen_) {
    finished_ = true;  // idle
    return;
  }
  Refuse(408, "the request did not arrive in time");
}

// ---------------------------------------------------------------- out

void Http1::Refuse(int status, const std::string& message) {
  close_after_ = true;
  Answer(context_.handler.Refuse(status, message));
}

void Http1::Answer(HttpResponse response) {
  LetBodyGo();
  WriteHead(response, /*streams=*/false);
  OnAnswered();
}

void Http1::WriteHead(const HttpResponse& head, bool streams) {
  chunked_out_ = streams && !parser_.http_1_0();
  if (streams && parser_.http_1_0()) close_after_ = true;  // its end is the body's end
  ready_ += fmt::format("HTTP/1.1 {} {}\r\n", head.status, ReasonPhrase(head.status));
  for (const HttpHeader& header : head.headers) {
    ready_ += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (chunked_out_) ready_ += "transfer-encoding: chunked\r\n";
  if (!streams) ready_ += fmt::format("content-length: {}\r\n", head.body.size());
  if (close_after_) {
    ready_ += "connection: close\r\n";
  } else if (parser_.http_1_0()) {
    ready_ += "connection: keep-alive\r\n";
  }
  ready_ += "\r\n";
  if (!head_only_) ready_ += head.body;
}

void Http1::Produce(std::string& out, size_t most) {
  TakeAnswer();
  if (!ready_.empty()) {
    if (out.empty()) {
      out.swap(ready_);
    } else {
      out += ready_;
      ready_.clear();
    }
  }
  if (source_ != nullptr) PullBody(out, most);
}

void Http1::TakeAnswer() {
  if (exchange_ == nullptr || source_ != nullptr) return;
  std::optional<Exchange::Answer> answer = exchange_->TakeAnswer();
  if (!answer) return;
  WriteHead(answer->head, answer->source != nullptr);
  source_ = std::move(answer->source);
  if (source_ == nullptr) OnAnswered();
}

void Http1::PullBody(std::string& out, size_t most) {
  if (out.size() >= most) return;
  std::string piece;
  const BodySource::State state = source_->Pull(piece, most - out.size());
  if (!piece.empty() && !head_only_) {
    if (chunked_out_) out += fmt::format("{:x}\r\n", piece.size());
    out += piece;
    if (chunked_out_) out += "\r\n";
  }
  if (state == BodySource::State::kMore) return;
  if (state == BodySource::State::kBroken) close_after_ = true;
  if (chunked_out_) out += "0\r\n\r\n";
  OnAnswered();
}

void Http1::OnAnswered() {
  if (exchange_ != nullptr) exchange_->Close(/*client_left=*/false);
  exchange_.reset();
  source_.reset();
  parser_.Reset();
  head_only_ = head_seen_ = false;
  deadline_ = context_.clock.Now() + context_.times.idle;
  finished_ = close_after_;
}

void Http1::OnClosed() {
  LetBodyGo();
  finished_ = true;
  if (exchange_ != nullptr) exchange_->Close(/*client_left=*/true);
  exchange_.reset();
  source_.reset();
}

}  // namespace penstock
