#include "http/http2/http2.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock {
namespace {

// Input bytes that are processed before output is produced again.
constexpr size_t kSliceBytes = 8 << 10;
// Queued frames, for a client that does not read, at which reading from it stops.
constexpr size_t kMaxQueued = 2000;
// Memory of a stream in addition to head and body, including libnghttp2's part.
constexpr size_t kStreamBytes = 2 << 10;
// Requests in handlers, for each stream that the client may open: the client sees the end of a
// stream a little before the handler has finished.
constexpr size_t kHeldPerStream = 2;
// Multiple of the head limit up to which a head is read, so that the client can be told the limit.
constexpr size_t kHeadsOfOne = 8;

}  // namespace

Http2::Http2(EdgeContext& context, std::function<void()> wake, std::string client)
    : context_(context),
      ready_(std::make_shared<Http2Ready>(std::move(wake))),
      client_(std::move(client)),
      session_(*this, context.limits, context.http2),
      flood_(context.clock.Now()),
      now_(context.clock.Now()),
      idle_since_(now_),
      last_input_(now_) {}

Http2Stream* Http2::Find(int32_t id) {
  const auto found = ended_ ? streams_.end() : streams_.find(id);
  return found == streams_.end() ? nullptr : found->second.get();
}

// ---------------------------------------------------------------- in

bool Http2::wants_input() const {
  return !ended_ && session_.wants_input() && session_.queued() < kMaxQueued;
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

void Http2::OnFrameBegin(uint8_t type) { OnFloodVerdict(flood_.OnFrame(type, now_)); }

void Http2::OnEmptyData() { OnFloodVerdict(flood_.OnEmptyData(now_)); }

bool Http2::OnStream(int32_t id) {
  if (ended_) return false;
  if (ready_->marks() >= kHeldPerStream * context_.http2.streams) {
    context_.metrics.OnLimit(EdgeLimit::kStreams);
    return false;
  }
  auto stream = std::make_unique<Http2Stream>(id, context_.limits, context_.bodies, client_);
  if (!stream->place.GrowTo(kStreamBytes)) {
    context_.metrics.OnLimit(EdgeLimit::kBodies);
    return false;
  }
  streams_.emplace(id, std::move(stream));
  head_deadline_ = now_ + context_.times.head;
  head_stream_ = id;
  return true;
}

bool Http2::OnHeader(int32_t id, std::string_view name, std::string_view value) {
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return false;
  stream->head.Add(name, value);
  // HPACK (RFC 7541) can expand one frame to gigabytes by references to its table, so the decoded
  // size is bounded here.
  if (stream->head.bytes() <= kHeadsOfOne * context_.limits.head_bytes) return true;
  FailAt(EdgeLimit::kHead, NGHTTP2_ENHANCE_YOUR_CALM);
  return false;
}

void Http2::OnHeadEnded(int32_t id) {
  if (id == head_stream_) head_deadline_ = TimePoint::max();
}

void Http2::OnHead(int32_t id) {
  OnHeadEnded(id);
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return;
  const std::optional<HttpError> wrong = stream->head.Finish();
  stream->taken = stream->head.Take();
  stream->head_only = stream->taken.method == "HEAD";
  stream->more_headers = context_.handler.AnswerHeaders(stream->taken);
  if (wrong) return Refuse(*stream, LimitOfStatus(wrong->status), *wrong);
  if (std::optional<HttpResponse> refusal = context_.handler.Screen(stream->taken)) {
    stream->discards_body = true;
    return Begin(*stream, *std::move(refusal), nullptr);
  }
  stream->held = std::make_shared<BodyReservation>(context_.bodies,
                                                   AccountFor(context_, stream->taken, client_));
  if (!Hold(*stream)) return Refuse(*stream, EdgeLimit::kBodies, {503, kTooManyLarge});
  Open(*stream);
}

void Http2::Open(Http2Stream& stream) {
  stream.body_deadline = now_ + context_.times.body;
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
  if (stream != nullptr && !stream->discards_body) TakeBody(*stream, bytes);
}

void Http2::TakeBody(Http2Stream& stream, std::string_view bytes) {
  stream.body_bytes += bytes.size();
  stream.body_deadline = context_.times.NextBodyDeadline(stream.body_deadline, bytes.size(), now_);
  if (!Hold(stream)) return Refuse(stream, EdgeLimit::kBodies, {503, kTooManyLarge});
  if (stream.sink != nullptr) {
    stream.discards_body = !stream.sink->Take(bytes);
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
  ++complete_requests_;
  if (stream->discards_body) return;
  if (stream->sink != nullptr) return stream->sink->End();
  QueueForHandler(context_, {std::move(stream->taken), std::move(stream->body)},
                  std::move(stream->held), stream->exchange);
}

void Http2::OnPong() {
  if (closing_ == Closing::kAnnounced) closing_ = Closing::kConfirmed;
}

// ---------------------------------------------------------------- out

bool Http2::finished() const {
  return !session_.wants_output() && (ended_ || !session_.wants_input());
}

void Http2::Produce(std::string& out, size_t max) {
  now_ = context_.clock.Now();
  TakeAnswers();
  if (!session_.Produce(out, max)) ended_ = true;
  if (finished()) NotifyClientLeft();
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
  std::ranges::move(stream.more_headers, std::back_inserter(head.headers));
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
  stream.discards_body = true;
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
  flood_.OnDataSent();
  if (Http2Stream* stream = Find(id)) stream->progress = now_;
}

void Http2::OnAnswered(int32_t id) {
  Http2Stream* stream = Find(id);
  if (stream == nullptr) return;
  stream->answered = true;
  if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/false);
  // The client need not send the rest of a body that is not read.
  if (!stream->complete) session_.Reset(id, NGHTTP2_NO_ERROR);
}

void Http2::OnResetSent(uint32_t error) {
  if (error == NGHTTP2_PROTOCOL_ERROR) context_.metrics.OnLimit(EdgeLimit::kMalformed);
  if (error != NGHTTP2_NO_ERROR) OnFloodVerdict(flood_.OnResetSent(now_));
}

void Http2::OnGoawaySent(uint32_t error) {
  // A connection that this side ended has already been counted.
  if (error == NGHTTP2_NO_ERROR || ended_ || flood_reported_) return;
  const bool flood = error == NGHTTP2_ENHANCE_YOUR_CALM;
  context_.metrics.OnLimit(flood ? EdgeLimit::kFlood : EdgeLimit::kMalformed);
}

void Http2::OnStreamClosed(int32_t id) {
  OnHeadEnded(id);  // A malformed head is reset without OnHead.
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const std::unique_ptr<Http2Stream> stream = std::move(found->second);
  streams_.erase(found);
  if (stream->complete) --complete_requests_;
  if (stream->exchange != nullptr) stream->exchange->Close(/*client_left=*/true);
  if (streams_.empty()) idle_since_ = now_;
}

}  // namespace penstock
