// The deadlines of Http2, and the shutdown of a connection.

#include <algorithm>
#include <utility>

#include "http/http2/http2.h"

namespace penstock {
namespace {

// For the client to answer the PING after the first GOAWAY.
constexpr Duration kConfirmWithin = std::chrono::seconds(1);

}  // namespace

TimePoint Http2::ConnectionDeadline() const {
  const EdgeTimes& times = context_.times;
  if (!session_.established()) return idle_since_ + times.head;
  if (streams_.empty()) return idle_since_ + times.idle;
  return last_input_ + times.ping + (pinged_ ? times.stall : Duration::zero());
}

TimePoint Http2::deadline() const {
  if (ended_) return TimePoint::max();
  return std::min({ConnectionDeadline(), head_deadline_, check_streams_});
}

void Http2::OnDeadline() {
  now_ = context_.clock.Now();
  if (now_ >= head_deadline_) return FailAt(EdgeLimit::kSlowRequest, NGHTTP2_ENHANCE_YOUR_CALM);
  if (now_ >= ConnectionDeadline()) CheckConnection();
  if (now_ >= check_streams_) CheckStreams();
}

void Http2::CheckConnection() {
  const bool asks = session_.established() && !streams_.empty() && !pinged_;
  if (!asks) return Fail(NGHTTP2_NO_ERROR);
  pinged_ = true;
  session_.Ping();
}

void Http2::CheckStreams() {
  check_streams_ = TimePoint::max();
  for (const auto& [id, stream] : streams_) CheckBy(CheckStream(*stream));
}

TimePoint Http2::CheckStream(Http2Stream& stream) {
  const EdgeTimes& times = context_.times;
  if (!stream.begun) {
    if (stream.complete || stream.discards_body) return TimePoint::max();
    if (now_ < stream.body_deadline) return stream.body_deadline;
    Refuse(stream, EdgeLimit::kSlowRequest, {408, kTooSlow});
    return now_ + times.stall;
  }
  if (stream.answered || stream.waits || !stream.answer) return TimePoint::max();
  const TimePoint deadline = stream.progress + times.stall;
  // If the windows have room, the socket is full; Connection watches that.
  if (now_ < deadline || !session_.IsHeldBack(stream.id)) {
    return std::max(deadline, now_ + times.stall / 4);
  }
  context_.metrics.OnLimit(EdgeLimit::kStalled);
  session_.Reset(stream.id, NGHTTP2_CANCEL);
  return TimePoint::max();
}

bool Http2::OnClosing() {
  if (!session_.established()) return true;
  now_ = context_.clock.Now();
  switch (closing_) {
    case Closing::kNo:
      session_.AnnounceEnd();
      session_.Ping();
      announced_ = now_;
      closing_ = Closing::kAnnounced;
      return false;
    case Closing::kAnnounced:
      if (now_ - announced_ < kConfirmWithin) return false;
      [[fallthrough]];
    case Closing::kConfirmed:
      // Requests that were on their way when the client received the first GOAWAY have arrived by
      // now.
      session_.RefuseStreams(NGHTTP2_NO_ERROR);
      closing_ = Closing::kRefusing;
      return false;
    case Closing::kRefusing:
      return false;
  }
  return false;
}

void Http2::FailAt(EdgeLimit limit, uint32_t error) {
  if (!ended_) context_.metrics.OnLimit(limit);
  Fail(error);
}

void Http2::OnFloodVerdict(Http2FloodDetector::Verdict verdict) {
  using Verdict = Http2FloodDetector::Verdict;
  if (verdict == Verdict::kCloseConnection) return Fail(NGHTTP2_ENHANCE_YOUR_CALM);
  if (verdict == Verdict::kOk || std::exchange(flood_reported_, true)) return;
  context_.metrics.OnLimit(EdgeLimit::kFlood);
  session_.RefuseStreams(NGHTTP2_ENHANCE_YOUR_CALM);
}

void Http2::Fail(uint32_t error) {
  if (ended_) return;
  ended_ = true;
  session_.Terminate(error);
  NotifyClientLeft();
}

void Http2::NotifyClientLeft() {
  for (const auto& [id, stream] : streams_) {
    if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/true);
  }
}

void Http2::OnClosed() {
  ended_ = true;
  NotifyClientLeft();
  streams_.clear();
}

}  // namespace penstock
