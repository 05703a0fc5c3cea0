#include "http/http1/http1.h"

#include <fmt/format.h>

#include <utility>

namespace penstock {

Http1::Http1(EdgeContext& context, std::function<void()> wake, std::string client)
    : context_(context),
      wake_(std::move(wake)),
      client_(std::move(client)),
      parser_(context.limits) {
  deadline_ = context_.clock.Now() + context_.times.first_byte;
}

// ---------------------------------------------------------------- in

void Http1::TakeInput(std::string_view& bytes) {
  while (wants_input()) {
    const bool idle = !parser_.started();
    const Http1Parser::Event event = parser_.Take(bytes);
    if (idle && parser_.started()) deadline_ = context_.clock.Now() + context_.times.head;
    switch (event) {
      case Http1Parser::Event::kMore:
        if (!head_seen_) return;
        if (!held_->GrowTo(parser_.body_bytes_so_far()))
          return Refuse(EdgeLimit::kBodies, 503, kTooManyLarge);
        return PaceBody();
      case Http1Parser::Event::kHead:
        OnHead();
        break;
      case Http1Parser::Event::kRequest:
        OnRequest();
        break;
      case Http1Parser::Event::kError:
        if (!head_seen_) more_headers_ = context_.handler.AnswerHeaders(parser_.head());
        return Refuse(LimitOfStatus(parser_.error().status), parser_.error().status,
                      parser_.error().message);
    }
  }
}

void Http1::PaceBody() {
  const size_t more = parser_.body_bytes_so_far() - body_paced_;
  deadline_ = context_.times.NextBodyDeadline(deadline_, more, context_.clock.Now());
  body_paced_ += more;
}

void Http1::OnHead() {
  head_seen_ = true;
  deadline_ = context_.clock.Now() + context_.times.body;
  body_paced_ = 0;
  head_only_ = parser_.head().method == "HEAD";
  more_headers_ = context_.handler.AnswerHeaders(parser_.head());
  std::optional<HttpResponse> refusal = context_.handler.Screen(parser_.head());
  if (refusal) {
    close_after_ = true;  // The body that follows is not read.
    return Answer(*std::move(refusal));
  }
  held_ = std::make_shared<BodyReservation>(context_.bodies,
                                            AccountFor(context_, parser_.head(), client_));
  if (parser_.expects_continue() && !parser_.http_1_0()) ready_ += "HTTP/1.1 100 Continue\r\n\r\n";
}

void Http1::OnRequest() {
  if (!held_->GrowTo(parser_.body_bytes_so_far()))
    return Refuse(EdgeLimit::kBodies, 503, kTooManyLarge);
  close_after_ = !parser_.keep_alive();
  deadline_ = TimePoint::max();
  exchange_ = std::make_shared<Exchange>(wake_);
  QueueForHandler(context_, parser_.TakeRequest(), std::move(held_), exchange_);
}

void Http1::OnDeadline() {
  if (!parser_.started() && !head_seen_) {
    finished_ = true;  // an idle connection
    return;
  }
  Refuse(EdgeLimit::kSlowRequest, 408, kTooSlow);
}

// ---------------------------------------------------------------- out

void Http1::Refuse(EdgeLimit limit, int status, const std::string& message) {
  context_.metrics.OnLimit(limit);
  close_after_ = true;
  Answer(context_.handler.Refuse(status, message));
}

void Http1::Answer(HttpResponse response) {
  held_.reset();
  WriteHead(response, /*streams=*/false);
  OnAnswered();
}

void Http1::WriteHead(const HttpResponse& head, bool streams) {
  context_.metrics.OnResponse(head.status);
  chunked_out_ = streams && !parser_.http_1_0();
  // Without chunks, the end of the connection is the body's end.
  if (streams && parser_.http_1_0()) close_after_ = true;
  ready_ += fmt::format("HTTP/1.1 {} {}\r\n", head.status, ReasonPhrase(head.status));
  const auto write = [this](const std::vector<HttpHeader>& headers) {
    for (const HttpHeader& header : headers) {
      ready_ += fmt::format("{}: {}\r\n", header.name, header.value);
    }
  };
  write(head.headers);
  write(more_headers_);
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

void Http1::Produce(std::string& out, size_t max) {
  TakeAnswer();
  if (!ready_.empty()) {
    if (out.empty()) {
      out.swap(ready_);
    } else {
      out += ready_;
      ready_.clear();
    }
  }
  if (source_ != nullptr) PullBody(out, max);
}

void Http1::TakeAnswer() {
  if (exchange_ == nullptr || source_ != nullptr) return;
  std::optional<Exchange::Answer> answer = exchange_->TakeAnswer();
  if (!answer) return;
  WriteHead(answer->head, answer->source != nullptr);
  source_ = std::move(answer->source);
  if (source_ == nullptr) OnAnswered();
}

void Http1::PullBody(std::string& out, size_t max) {
  if (out.size() >= max) return;
  std::string piece;
  const BodySource::State state = source_->Pull(piece, max - out.size());
  if (!piece.empty() && !head_only_) {
    if (chunked_out_) out += fmt::format("{:x}\r\n", piece.size());
    out += piece;
    if (chunked_out_) out += "\r\n";
  }
  if (state == BodySource::State::kMore) return;
  if (state == BodySource::State::kBroken) {
    close_after_ = true;  // Without the last chunk, the client sees that the body is incomplete.
  } else if (chunked_out_) {
    out += "0\r\n\r\n";
  }
  OnAnswered();
}

void Http1::OnAnswered() {
  if (exchange_ != nullptr) exchange_->Close(/*client_left=*/false);
  exchange_.reset();
  source_.reset();
  more_headers_.clear();
  parser_.Reset();
  head_only_ = head_seen_ = false;
  deadline_ = context_.clock.Now() + context_.times.idle;
  finished_ = close_after_;
}

void Http1::OnClosed() {
  held_.reset();
  finished_ = true;
  if (exchange_ != nullptr) exchange_->Close(/*client_left=*/true);
  exchange_.reset();
  source_.reset();
}

}  // namespace penstock
