#include "router/edge/http2.h"

#include <utility>

namespace penstock {
namespace {

// What is taken of the input before the output is looked at again.
constexpr size_t kSliceBytes = 8 << 10;
// Frames that wait for a client that does not read, before nothing more is read of it.
constexpr size_t kMostQueued = 2000;
// What a stream takes beside its request's head and body, and libnghttp2's part of it.
constexpr size_t kStreamBytes = 2 << 10;
// Requests that somebody works on, for each that the client may have open: it sees a stream end a
// little before we do.
constexpr size_t kHeldPerStream = 2;
// How far beyond its limit a head may go to be told so.
constexpr size_t kHeadsOfOne = 8;
constexpr Duration kConfirmWithin = std::chrono::seconds(1);

}  // namespace

Http2::Http2(EdgeContext& context, std::function<void()> wake)
    : context_(context),
      ready_(std::make_shared<Http2Ready>(std::move(wake))),
      session_(*this, context.limits, context.http2),
      guard_(context.clock.Now()),
      now_(context.clock.Now()),
      idle_since_(now_),
      last_input_(now_) {}

Http2Stream* Http2::Find(int32_t id) {
  const auto found = ended_ ? streams_.end() : streams_.find(id);
  return found == streams_.end() ? nullptr : found->second.get();
}

// ---------------------------------------------------------------- in

bool Http2::wants_input() const {
  return !ended_ && session_.wants_input() && session_.queued() < kMostQueued;
}

void Http2::TakeInput(std::string_view& bytes) {
  now_ = last_input_ = context_.clock.Now();
  pinged_ = false;
  while (!bytes.empty() && wants_input()) {
    const std::string_view slice = bytes.substr(0, kSliceBytes);
    bytes.remove_prefix(slice.size());
    if (const uint32_t error = session_.Take(slice); error != NGHTTP2_NO_ERROR) {
      const bool flood = error == NGHTTP2_ENHANCE_YOUR_CALM;
      FailAt(flood ? EdgeLimit::kFlood : EdgeLimit::kMalformed, error);
    }
  }
}

void Http2::OnFrameBegin(const Http2Session::Frame& frame) {
  Heed(guard_.OnFrame(frame.type, now_));
}

void Http2::OnEmptyData(int32_t) { Heed(guard_.OnEmptyData(now_)); }

bool Http2::OnStream(int32_t id) {
  if (ended_) return false;
  if (ready_->marks() >= kHeldPerStream * context_.http2.streams) {
    context_.metrics.OnLimit(EdgeLimit::kStreams);
    return false;
  }
  auto stream = std::make_unique<Http2Stream>(id, context_.limits, context_.bodies);
  if (!stream->place.GrowTo(kStreamBytes)) {
    context_.metrics.OnLimit(EdgeLimit::kBodies);
    return false;
  }
  streams_.emplace(id, std::move(stream));
  head_deadline_ = now_ + context_.times.head;
  return true;
}

bool Http2::OnHeader(int32_t id, std::string_view name, std::string_view value) {
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return false;
  stream->head.Add(name, value);
  // A table of header compression makes gigabytes out of one frame.
  if (stream->head.bytes() <= kHeadsOfOne * context_.limits.head_bytes) return true;
  FailAt(EdgeLimit::kHead, NGHTTP2_ENHANCE_YOUR_CALM);
  return false;
}

void Http2::OnHead(int32_t id) {
  head_deadline_ = TimePoint::max();
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return;
  const std::optional<HttpError> wrong = stream->head.Finish();
  stream->taken = stream->head.Take();
  stream->head_only = stream->taken.method == "HEAD";
  if (wrong) return Refuse(*stream, LimitOfStatus(wrong->status), *wrong);
  if (!Hold(*stream)) return Refuse(*stream, EdgeLimit::kBodies, {503, kTooManyLarge});
  if (std::optional<HttpResponse> refusal = context_.handler.Screen(stream->taken)) {
    stream->throws_away = true;
    return Begin(*stream, *std::move(refusal), nullptr);
  }
  Open(*stream);
}

void Http2::Open(Http2Stream& stream) {
  stream.body_begin = now_;
  CheckBy(now_ + context_.times.body);
  const auto mark = std::make_shared<Http2Ready::Mark>(ready_, stream.id);
  stream.exchange = std::make_shared<Exchange>([mark] { mark->Wake(); });
  stream.sink = context_.handler.Open(stream.taken, stream.exchange);
  if (stream.sink != nullptr) stream.taken = {};
  if (stream.head.expects_continue()) session_.Continue(stream.id);
}

bool Http2::Hold(Http2Stream& stream) {
  if (stream.held == nullptr) return true;
  return stream.held->GrowTo(stream.head.bytes() + stream.body_bytes);
}

void Http2::OnData(int32_t id, std::string_view bytes) {
  session_.Consume(id, bytes.size());
  Http2Stream* stream = Find(id);
  if (stream != nullptr && !stream->throws_away) TakeBody(*stream, bytes);
}

void Http2::TakeBody(Http2Stream& stream, std::string_view bytes) {
  stream.body_bytes += bytes.size();
  if (!Hold(stream)) return Refuse(stream, EdgeLimit::kBodies, {503, kTooManyLarge});
  if (stream.sink != nullptr) {
    stream.throws_away = !stream.sink->Take(bytes);
    return;
  }
  if (stream.body_bytes > context_.limits.body_bytes) {
    return Refuse(stream, EdgeLimit::kBody, BodyTooLarge(context_.limits));
  }
  stream.body += bytes;
}

void Http2::OnRequestEnd(int32_t id) {
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return;
  stream->complete = true;
  if (stream->throws_away) return;
  if (stream->sink != nullptr) return stream->sink->End();
  HandOver(context_, {std::move(stream->taken), std::move(stream->body)}, std::move(stream->held),
           stream->exchange);
}

void Http2::OnPong() {
  if (closing_ == Closing::kAnnounced) closing_ = Closing::kConfirmed;
}

// ---------------------------------------------------------------- out

bool Http2::finished() const {
  return !session_.wants_output() && (ended_ || !session_.wants_input());
}

void Http2::Produce(std::string& out, size_t most) {
  now_ = context_.clock.Now();
  TakeAnswers();
  if (!session_.Produce(out, most)) ended_ = true;
  if (finished()) TellThatClientLeft();
}

void Http2::TakeAnswers() {
  for (const int32_t id : ready_->Take()) {
    Http2Stream* stream = Find(id);
    if (stream == nullptr || stream->exchange == nullptr) continue;
    if (stream->begun) {
      Resume(*stream);
    } else if (std::optional<Exchange::Answer> answer = stream->exchange->TakeAnswer()) {
      Begin(*stream, std::move(answer->head), std::move(answer->source));
    }
  }
}

void Http2::Begin(Http2Stream& stream, HttpResponse head, std::shared_ptr<BodySource> source) {
  const bool body = (source != nullptr || !head.body.empty()) && !stream.head_only;
  context_.metrics.OnResponse(head.status);
  stream.begun = true;
  stream.taken = {};
  stream.body = {};
  stream.held.reset();
  session_.Respond(stream.id, head, body);
  if (!body) return;
  if (source != nullptr) {
    stream.answer.emplace(std::move(source));
  } else {
    stream.answer.emplace(std::move(head.body));
  }
  stream.progress = now_;
  CheckBy(now_ + context_.times.stall);
}

void Http2::Resume(Http2Stream& stream) {
  if (!std::exchange(stream.waits, false)) return;
  stream.progress = now_;
  CheckBy(now_ + context_.times.stall);
  session_.Resume(stream.id);
}

void Http2::Refuse(Http2Stream& stream, EdgeLimit limit, const HttpError& error) {
  context_.metrics.OnLimit(limit);
  stream.throws_away = true;
  stream.sink.reset();
  if (stream.exchange != nullptr) stream.exchange->Close(/*client_left=*/true);
  stream.exchange.reset();
  Begin(stream, context_.handler.Refuse(error.status, error.message), nullptr);
}

Http2Answer* Http2::AnswerOf(int32_t id) {
  Http2Stream* stream = Find(id);
  return stream == nullptr || !stream->answer ? nullptr : &*stream->answer;
}

void Http2::OnAnswerWaits(int32_t id) {
  if (Http2Stream* stream = Find(id)) stream->waits = true;
}

void Http2::OnDataSent(int32_t id) {
  guard_.OnDataSent();
  if (Http2Stream* stream = Find(id)) stream->progress = now_;
}

void Http2::OnAnswered(int32_t id) {
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return;
  stream->answered = true;
  if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/false);
  // The client need not send what nobody reads.
  if (!stream->complete) session_.Reset(id, NGHTTP2_NO_ERROR);
}

void Http2::OnResetSent(int32_t, uint32_t error) {
  if (error != NGHTTP2_NO_ERROR) Heed(guard_.OnResetSent(now_));
}

void Http2::OnStreamClosed(int32_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::unique_ptr<Http2Stream> stream = std::move(found->second);
  streams_.erase(found);
  if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/true);
  if (streams_.empty()) idle_since_ = now_;
}

// ---------------------------------------------------------------- times and ends

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
    if (stream.complete || stream.throws_away) return TimePoint::max();
    const TimePoint deadline = times.BodyDeadline(stream.body_begin, stream.body_bytes);
    if (now_ < deadline) return deadline;
    Refuse(stream, EdgeLimit::kSlowRequest, {408, kTooSlow});
    return now_ + times.stall;
  }
  if (stream.answered || stream.waits || !stream.answer) return TimePoint::max();
  const TimePoint deadline = stream.progress + times.stall;
  // A socket that takes nothing is the connection's to see.
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
      // Requests that were on their way when the client heard have come by now.
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

void Http2::Heed(Http2Guard::Verdict verdict) {
  if (verdict == Http2Guard::Verdict::kTooMuch) return Fail(NGHTTP2_ENHANCE_YOUR_CALM);
  if (verdict == Http2Guard::Verdict::kFine || std::exchange(calmed_, true)) return;
  context_.metrics.OnLimit(EdgeLimit::kFlood);
  session_.RefuseStreams(NGHTTP2_ENHANCE_YOUR_CALM);
}

void Http2::Fail(uint32_t error) {
  if (ended_) return;
  ended_ = true;
  session_.Terminate(error);
  TellThatClientLeft();
}

void Http2::TellThatClientLeft() {
  for (const auto& [id, stream] : streams_) {
    if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/true);
  }
}

void Http2::OnClosed() {
  ended_ = true;
  TellThatClientLeft();
  streams_.clear();
}

}  // namespace penstock
