#pragma once

#include "http/http1/http1_parser.h"
#include "http/protocol.h"

namespace penstock {

// HTTP/1.1 and 1.0 (RFC 9112), one request at a time: pipelined requests stay unread until the
// previous one is answered. One connection owns it; its thread calls it.
//
// This room, http/http1, is one of the two protocols. It may use http/ only. It does not know
// sockets, TLS or the API.
class Http1 final : public Protocol {
 public:
  // `client` is the account of requests for which the handler names none.
  Http1(EdgeContext& context, std::function<void()> wake, std::string client);

  void TakeInput(std::string_view& bytes) override;
  bool wants_input() const override { return exchange_ == nullptr && !finished_; }
  bool idle() const override { return exchange_ == nullptr && ready_.empty(); }
  void Produce(std::string& out, size_t max) override;
  bool finished() const override { return finished_ && ready_.empty(); }
  TimePoint deadline() const override { return deadline_; }
  void OnDeadline() override;
  bool OnClosing() override { return wants_input(); }
  void OnClosed() override;

 private:
  void OnHead();
  void PaceBody();
  void OnRequest();
  void Answer(HttpResponse response);  // answers without the handler
  void Refuse(EdgeLimit limit, int status, const std::string& message);  // answers, then closes
  void WriteHead(const HttpResponse& head, bool streams);
  void TakeAnswer();
  void PullBody(std::string& out, size_t max);
  void OnAnswered();

  EdgeContext& context_;
  const CountedConnection counted_{context_.metrics, EdgeProtocol::kHttp1};
  const std::function<void()> wake_;
  const std::string client_;
  Http1Parser parser_;
  TimePoint deadline_ = TimePoint::max();
  size_t body_paced_ = 0;                  // bytes of the body that deadline_ takes into account
  std::shared_ptr<Exchange> exchange_;     // the request that is being answered
  std::shared_ptr<BodySource> source_;     // set while the answer streams
  std::string ready_;                      // output that precedes the bytes of source_
  std::shared_ptr<BodyReservation> held_;  // reservation of the request that is being received
  std::vector<HttpHeader> more_headers_;   // the handler's for the request that is in work
  bool head_only_ = false;                 // HEAD: the answer has no body
  bool close_after_ = false;
  bool chunked_out_ = false;
  bool head_seen_ = false;
  bool finished_ = false;
};

}  // namespace penstock
