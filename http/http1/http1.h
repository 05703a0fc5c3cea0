#pragma once

#include "http/http1/http1_parser.h"
#include "http/protocol.h"

namespace penstock {

// HTTP/1.1 (and 1.0) with one request at a time: what a client sends ahead waits unread.
class Http1 final : public Protocol {
 public:
  Http1(EdgeContext& context, std::function<void()> wake);

  void TakeInput(std::string_view& bytes) override;
  bool wants_input() const override { return exchange_ == nullptr && !finished_; }
  void Produce(std::string& out, size_t max) override;
  bool finished() const override { return finished_ && ready_.empty(); }
  TimePoint deadline() const override { return deadline_; }
  void OnDeadline() override;
  bool OnClosing() override { return wants_input(); }
  void OnClosed() override;

 private:
  void OnHead();
  void OnRequest();
  void Answer(HttpResponse response);                                    // at once, by ourselves
  void Refuse(EdgeLimit limit, int status, const std::string& message);  // and close
  void WriteHead(const HttpResponse& head, bool streams);
  void TakeAnswer();
  void PullBody(std::string& out, size_t max);
  void OnAnswered();

  EdgeContext& context_;
  const CountedConnection counted_{context_.metrics, EdgeProtocol::kHttp1};
  const std::function<void()> wake_;
  Http1Parser parser_;
  TimePoint deadline_ = TimePoint::max();
  TimePoint body_begin_;
  std::shared_ptr<Exchange> exchange_;  // of the request that is being answered
  std::shared_ptr<BodySource> source_;  // once its answer streams
  std::string ready_;                   // to send, before anything of source_
  std::shared_ptr<HeldBody> held_;      // of the request that comes in
  bool head_only_ = false;              // HEAD: no body goes out
  bool close_after_ = false;
  bool chunked_out_ = false;
  bool head_seen_ = false;
  bool finished_ = false;
};

}  // namespace penstock
