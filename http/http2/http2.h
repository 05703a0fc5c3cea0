#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "http/http2/http2_flood_detector.h"
#include "http/http2/http2_ready.h"
#include "http/http2/http2_session.h"
#include "http/http2/http2_stream.h"
#include "http/protocol.h"

namespace penstock {

// HTTP/2 (RFC 9113): many requests at once on one connection, each a stream with its own
// flow-control windows. The body of an answer is pulled when the client's windows and the socket
// have room. The memory that one connection can occupy is bounded by its streams, by BodyBudget,
// and by the number of requests that handlers still work on: a reset stream counts until its
// handler has finished (Rapid Reset, CVE-2023-44487). One connection owns it; its thread calls it.
//
// This room, http/http2, is one of the two protocols. It may use base/ and http/ only. It does not
// know sockets, TLS or the API.
class Http2 final : public Protocol, private Http2Session::Events {
 public:
  // `client` is the account of requests for which the handler names none.
  Http2(EdgeContext& context, std::function<void()> wake, std::string client = "");
  ~Http2() override { ready_->Close(); }

  void TakeInput(std::string_view& bytes) override;
  bool wants_input() const override;
  bool idle() const override { return complete_requests_ == 0; }
  void Produce(std::string& out, size_t max) override;
  bool finished() const override;
  TimePoint deadline() const override;
  void OnDeadline() override;
  bool OnClosing() override;
  void OnClosed() override;

 private:
  enum class Closing { kNo, kAnnounced, kConfirmed, kRefusing };

  // Http2Session::Events:
  void OnFrameBegin(uint8_t type) override;
  bool OnStream(int32_t id) override;
  bool OnHeader(int32_t id, std::string_view name, std::string_view value) override;
  void OnHead(int32_t id) override;
  void OnData(int32_t id, std::string_view bytes) override;
  void OnEmptyData() override;
  void OnRequestEnd(int32_t id) override;
  void OnPong() override;
  Http2Answer* AnswerOf(int32_t id) override;
  void OnAnswerWaits(int32_t id) override;
  void OnAnswered(int32_t id) override;
  void OnDataSent(int32_t id) override;
  void OnResetSent(uint32_t error) override;
  void OnGoawaySent(uint32_t error) override;
  void OnStreamClosed(int32_t id) override;

  // Returns null if the stream is closed or the connection is ending.
  Http2Stream* Find(int32_t id);
  void Open(Http2Stream& stream);
  bool Hold(Http2Stream& stream);  // reserves the bytes received; false if the budget has no room
  void OnHeadEnded(int32_t id);
  void TakeBody(Http2Stream& stream, std::string_view bytes);
  void TakeAnswers();
  void Begin(Http2Stream& stream, HttpResponse head, std::shared_ptr<BodySource> source);
  void Resume(Http2Stream& stream);
  void Refuse(Http2Stream& stream, EdgeLimit limit, const HttpError& error);
  void OnFloodVerdict(Http2FloodDetector::Verdict verdict);
  void Fail(uint32_t error);  // ends the connection
  void FailAt(EdgeLimit limit, uint32_t error);
  void NotifyClientLeft();
  TimePoint ConnectionDeadline() const;
  void CheckConnection();
  void CheckStreams();
  TimePoint CheckStream(Http2Stream& stream);  // returns the time of the next check
  void CheckBy(TimePoint deadline) { check_streams_ = std::min(check_streams_, deadline); }

  EdgeContext& context_;
  const CountedConnection counted_{context_.metrics, EdgeProtocol::kHttp2};
  const std::shared_ptr<Http2Ready> ready_;
  const std::string client_;
  Http2Session session_;
  Http2FloodDetector flood_;
  std::unordered_map<int32_t, std::unique_ptr<Http2Stream>> streams_;
  size_t complete_requests_ = 0;  // streams whose request is complete
  TimePoint now_;                 // time of the present call
  TimePoint idle_since_;          // since when there is no stream
  TimePoint last_input_;
  TimePoint head_deadline_ = TimePoint::max();  // for the head that is being received
  int32_t head_stream_ = 0;                     // the stream of that head
  TimePoint check_streams_ = TimePoint::max();
  TimePoint announced_;  // time of the first GOAWAY
  Closing closing_ = Closing::kNo;
  bool pinged_ = false;
  bool flood_reported_ = false;  // GOAWAY with ENHANCE_YOUR_CALM is sent
  bool ended_ = false;           // the last GOAWAY is queued
};

}  // namespace penstock
