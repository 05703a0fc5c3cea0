#include "router/picker/processing.h"

#include <algorithm>

namespace penstock {
namespace {

// Gateways limit the body of one answer to 64 KiB.
constexpr size_t kPieceBytes = 60'000;

absl::Status OutOfOrder(std::string_view found) {
  return InvalidArgument("{} is not what the external processing protocol has at this place",
                         found);
}

}  // namespace

absl::StatusOr<Processing::Next> Processing::OnMessage(ext_proc::ProcessingRequest message) {
  using Kind = ext_proc::ProcessingRequest;
  if (message.observability_mode()) {
    return InvalidArgument(
        "observability_mode: the endpoint picker answers; take this setting out of the gateway's "
        "ext_proc filter");
  }
  if (state_ == State::kHead && message.has_protocol_config()) {
    request_mode_ = message.protocol_config().request_body_mode();
    response_mode_ = message.protocol_config().response_body_mode();
  }
  switch (message.request_case()) {
    case Kind::kRequestHeaders:
      return OnRequestHead(message);
    case Kind::kRequestBody:
      return OnRequestBody(std::move(*message.mutable_request_body()));
    case Kind::kRequestTrailers:
      return OnRequestTrailers();
    case Kind::kResponseHeaders:
      answers_.push_back(PassHeaders(Part::kResponse));
      return Next::kRead;
    case Kind::kResponseBody:
      return OnResponseBody(std::move(*message.mutable_response_body()));
    case Kind::kResponseTrailers:
      answers_.push_back(PassTrailers(Part::kResponse));
      return Next::kRead;
    case Kind::REQUEST_NOT_SET:
      break;
  }
  return OutOfOrder("a message without a part of the request or the response");
}

absl::StatusOr<Processing::Next> Processing::OnRequestHead(
    const ext_proc::ProcessingRequest& message) {
  if (state_ != State::kHead) return OutOfOrder("a second head of the request");
  const ext_proc::HttpHeaders& headers = message.request_headers();
  auto head = ReadHead(headers, args_.limits);
  if (const auto* error = std::get_if<HttpError>(&head)) {
    return Refuse(error->status, error->message);
  }
  request_.head = std::get<HttpHead>(std::move(head));
  if (const auto refusal = args_.rule.Screen(request_.head, SubsetOf(message))) {
    return End(*refusal);
  }
  const bool buffered = request_mode_ == Mode::BUFFERED;
  if (headers.end_of_stream() || (!buffered && request_mode_ != Mode::FULL_DUPLEX_STREAMED)) {
    // No body comes, or it comes only after the answer to the head.
    state_ = State::kDecided;
    Name(NamedWith::kHeaders);
    return Next::kRead;
  }
  state_ = State::kBody;
  reserved_.emplace(args_.bodies, args_.rule.AccountOf(request_.head));
  if (buffered) answers_.push_back(PassHeaders(Part::kRequest));
  return Next::kRead;
}

absl::StatusOr<Processing::Next> Processing::OnRequestBody(ext_proc::HttpBody body) {
  if (state_ == State::kDecided && request_mode_ != Mode::FULL_DUPLEX_STREAMED &&
      request_mode_ != Mode::BUFFERED) {
    answers_.push_back(PassBody(Part::kRequest));
    return Next::kRead;
  }
  if (state_ != State::kBody) return OutOfOrder("a piece of the request's body");
  const size_t bytes = request_.body.size() + body.body().size();
  if (bytes > args_.limits.body_bytes) {
    const HttpError error = BodyTooLarge(args_.limits);
    return Refuse(error.status, error.message);
  }
  if (!reserved_->GrowTo(bytes)) {
    return Refuse(503, "the bodies of other requests fill the memory for them; try again");
  }
  request_.body += body.body();
  // A buffered body is one message, even if trailers end it.
  return body.end_of_stream() || request_mode_ == Mode::BUFFERED ? Decide() : Next::kRead;
}

absl::StatusOr<Processing::Next> Processing::OnRequestTrailers() {
  if (state_ == State::kDecided) {
    answers_.push_back(PassTrailers(Part::kRequest));
    return Next::kRead;
  }
  if (state_ != State::kBody) return OutOfOrder("the request's trailers");
  if (request_mode_ == Mode::BUFFERED) return Refuse(400, "the request has trailers but no body");
  trailers_ = true;
  return Decide();
}

Processing::Next Processing::Decide() {
  state_ = State::kDecision;
  return Next::kDecide;
}

Processing::Next Processing::OnDecided(const std::optional<HttpResponse>& refusal) {
  if (refusal) return End(*refusal);
  state_ = State::kDecided;
  if (request_mode_ == Mode::FULL_DUPLEX_STREAMED) {
    Name(NamedWith::kHeaders);
    returning_ = true;
  } else {
    Name(NamedWith::kBody);
    reserved_.reset();
    request_ = {};
  }
  return Next::kRead;
}

Processing::Next Processing::OnResponseBody(ext_proc::HttpBody body) {
  if (response_mode_ == Mode::FULL_DUPLEX_STREAMED) {
    QueuePieces(Part::kResponse, body.body(), body.end_of_stream());
  } else {
    answers_.push_back(PassBody(Part::kResponse));
  }
  return Next::kRead;
}

Processing::Next Processing::Refuse(int status, const std::string& message) {
  return End(args_.rule.Refuse(status, message));
}

Processing::Next Processing::End(const HttpResponse& refusal) {
  state_ = State::kDecided;
  reserved_.reset();
  request_ = {};
  answers_.push_back(AnswerClient(refusal));
  return Next::kEnd;
}

void Processing::Name(NamedWith with) {
  args_.rule.OnNamed();
  answers_.push_back(NameEndpoint(args_.endpoint, with));
}

void Processing::QueuePieces(Part part, const std::string& bytes, bool last) {
  size_t begin = 0;
  do {
    const size_t end = std::min(begin + kPieceBytes, bytes.size());
    answers_.push_back(
        BodyPiece(part, bytes.substr(begin, end - begin), last && end == bytes.size()));
    begin = end;
  } while (begin < bytes.size());
}

// The request's body is given back piece by piece as the gateway takes it, so that there is never a
// second copy of it.
std::optional<ext_proc::ProcessingResponse> Processing::TakeAnswer() {
  if (!answers_.empty()) {
    ext_proc::ProcessingResponse answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }
  if (!returning_) return std::nullopt;
  std::string piece = request_.body.substr(returned_, kPieceBytes);
  returned_ += piece.size();
  const bool all = returned_ == request_.body.size();
  if (all) {
    returning_ = false;
    reserved_.reset();
    request_ = {};
    if (trailers_) answers_.push_back(PassTrailers(Part::kRequest));
  }
  return BodyPiece(Part::kRequest, std::move(piece), all && !trailers_);
}

}  // namespace penstock
